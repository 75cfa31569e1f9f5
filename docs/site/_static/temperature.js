// Draws the temperature as a function of similarity while its sliders move.
const FORMS = {
  constant: (s, low, high) => high,
  cosine: (s, low, high) => low + (high - low) / 2 * (1 + Math.cos(Math.PI * (1 + s))),
  linear: (s, low, high) => low + (high - low) * Math.abs(s),
  exponential: (s, low, high) => low + (high - low) * Math.expm1(-3.5 * Math.abs(s)) / Math.expm1(-3.5),
  monotonic_cosine: (s, low, high) => low + (high - low) / 2 * (1 - Math.cos(Math.PI * (1 + s) / 2)),
};

function draw(box) {
  const value = name => Number(box.querySelector(`[name=${name}]`).value);
  const form = FORMS[box.querySelector("[name=form]").value];
  const low = Math.min(value("low"), value("high")), high = value("high");
  const x = s => 40 + (s + 1) / 2 * 340, y = t => 180 - t / 0.6 * 160;
  const points = Array.from({ length: 101 }, (_, i) => i / 50 - 1)
    .map(s => `${x(s).toFixed(1)},${y(form(s, low, high)).toFixed(1)}`);
  box.querySelector("path").setAttribute("d", `M${points.join("L")}`);
  for (const name of ["low", "high"]) box.querySelector(`[data-for=${name}]`).textContent = value(name).toFixed(2);
}

document.querySelectorAll(".slider").forEach(box => {
  box.addEventListener("input", () => draw(box));
  draw(box);
});
