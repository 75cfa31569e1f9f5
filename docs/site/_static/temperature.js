// Draws the temperature as a function of similarity, and what it does to the push, while its sliders move.
const FORMS = {
  constant: (s, low, high) => high,
  cosine: (s, low, high) => low + (high - low) / 2 * (1 + Math.cos(Math.PI * (1 + s))),
  linear: (s, low, high) => low + (high - low) * Math.abs(s),
  exponential: (s, low, high) => low + (high - low) * Math.expm1(-3.5 * Math.abs(s)) / Math.expm1(-3.5),
  monotonic_cosine: (s, low, high) => low + (high - low) / 2 * (1 - Math.cos(Math.PI * (1 + s) / 2)),
};

// NT-Xent pushes a negative in proportion to exp(s/τ)/τ; no gradient flows through τ(s). Returns each push over the largest one.
function pushes(similarities, temperature) {
  const logs = similarities.map(s => s / temperature(s) - Math.log(temperature(s)));
  const largest = Math.max(...logs);
  return logs.map(value => Math.exp(value - largest));
}

// The smallest share of the negatives that gets half of the push, in per cent
function hardestHalf(push) {
  const sorted = [...push].sort((a, b) => b - a), total = sorted.reduce((sum, value) => sum + value, 0);
  let sum = 0, count = 0;
  while (sum < total / 2) sum += sorted[count++];
  return 100 * count / sorted.length;
}

function draw(box) {
  const value = name => Number(box.querySelector(`[name=${name}]`).value);
  const chosen = box.querySelector("[name=form]").value;
  const low = Math.min(value("low"), value("high")), high = value("high");
  const temperature = s => FORMS[chosen](s, low, high);
  const similarities = Array.from({ length: 401 }, (_, i) => i / 200 - 1);
  const curve = (name, values, top) => box.querySelector(`path[data-for=${name}]`).setAttribute("d", "M" + values
    .map((y, i) => `${(40 + (similarities[i] + 1) / 2 * 340).toFixed(1)},${(180 - y / top * 160).toFixed(1)}`).join("L"));
  const push = pushes(similarities, temperature);
  curve("tau", similarities.map(temperature), 0.6);
  curve("push", push, 1);
  for (const name of ["low", "high"]) box.querySelector(`span[data-for=${name}]`).textContent = value(name).toFixed(2);
  box.querySelector("[name=low]").parentElement.hidden = chosen === "constant";
  box.querySelector("[name=high]").parentElement.querySelector(".name").textContent = chosen === "constant" ? "τ" : "high";
  box.querySelector("p[data-for=push]").textContent =
    `Half of the push falls on ${hardestHalf(push).toPrecision(2)} % of the negatives.`;
}

document.querySelectorAll(".slider").forEach(box => {
  box.addEventListener("input", () => draw(box));
  draw(box);
});
