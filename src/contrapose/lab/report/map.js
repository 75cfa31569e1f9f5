// Maps on canvases: with 10,000 points, an SVG element for each took at least twice as long to show and to point at.
const data = JSON.parse(document.getElementById('points').textContent), tip = document.getElementById('tip');
const shapes = data.shapes.map(path => new Path2D(path)), boxes = [...document.querySelectorAll('.key input')];
const shown = data.classes.map(() => true), format = number => number.toLocaleString('en');
let near = null;  // the sample at the pointer, which is marked in all maps

const maps = data.maps.map((points, number) => {
  const figure = document.querySelectorAll('.maps figure')[number], canvas = figure.querySelector('canvas');
  const context = canvas.getContext('2d'), all = new OffscreenCanvas(1, 1);
  const fingers = new Map(), view = {scale: 1, x: 0, y: 0};
  let width = 0, height = 0;  // of the canvas, in CSS pixels
  const isShown = i => shown[points.label[i]] !== false;
  // From the 10,000 units of the data to the canvas, with a margin for the outermost points.
  const place = i => {
    const side = Math.min(width, height) - 24, left = (width - side) / 2;
    return [(points.x[i] / 10000 * side + left) * view.scale + view.x, (points.y[i] / 10000 * side + 12) * view.scale + view.y];
  };
  const radius = () => Math.max(2, Math.min(6, 130 / Math.sqrt(points.x.length))) * view.scale ** .4;
  // All points are drawn on a canvas of their own, so that marking one of them only copies it.
  const drawPoints = () => {
    const ratio = devicePixelRatio, size = ratio * radius(), pen = all.getContext('2d');
    canvas.width = all.width = width * ratio; canvas.height = all.height = height * ratio;
    pen.globalAlpha = .75;
    for (let i = 0; i < points.x.length; i++) if (isShown(i)) {
      const [x, y] = place(i), item = data.classes[points.label[i]] || {colour: data.colour, shape: 0};
      if (x < -9 || y < -9 || x > width + 9 || y > height + 9) continue;
      pen.setTransform(size, 0, 0, size, ratio * x, ratio * y);
      pen.fillStyle = item.colour;
      pen.fill(shapes[item.shape]);
    }
    drawMarks();
  };
  // Marks the points of the sample at the pointer, and connects those of two towers, such as an image and its caption.
  const drawMarks = () => {
    const same = near && near.samples === points.samples ? [near.n, near.n + points.count].filter(i => i < points.x.length && isShown(i)) : [];
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (all.width && all.height) context.drawImage(all, 0, 0);
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.beginPath();
    if (same.length > 1) { context.moveTo(...place(same[0])); context.lineTo(...place(same[1])) }
    for (const i of same) {
      const [x, y] = place(i);
      context.moveTo(x + 2 * radius(), y); context.arc(x, y, 2 * radius(), 0, 7);
    }
    context.lineWidth = 1.5; context.stroke();
  };
  let waiting = 0;
  const draw = () => { waiting ||= requestAnimationFrame(() => { waiting = 0; drawPoints() }) };
  const limit = (value, size) => Math.min(0, Math.max(size * (1 - view.scale), value));
  const move = (factor, x, y, dx = 0, dy = 0) => {
    const scale = Math.min(60, Math.max(1, view.scale * factor));
    view.x = x - (x - view.x) * scale / view.scale + dx; view.y = y - (y - view.y) * scale / view.scale + dy;
    view.scale = scale;
    view.x = limit(view.x, width); view.y = limit(view.y, height);
    canvas.style.touchAction = scale > 1 ? 'none' : 'pan-y';  // one finger scrolls the page until the map is enlarged
    draw();
  };
  const find = event => {
    let best = -1, least = 24 ** 2;
    for (let i = 0; i < points.x.length; i++) if (isShown(i)) {
      const [x, y] = place(i), distance = (x - event.offsetX) ** 2 + (y - event.offsetY) ** 2;
      if (distance < least) { best = i; least = distance }
    }
    return best;
  };
  const show = event => {
    const i = find(event), before = near && near.n;
    near = i < 0 ? null : {samples: points.samples, n: i % points.count};
    if ((near && near.n) !== before) maps.forEach(map => map.drawMarks());
    i < 0 ? tip.hidden = true : describe(points, near.n, (data.classes[points.label[i]] || {}).name, event);
  };
  canvas.addEventListener('pointerdown', event => {
    canvas.setPointerCapture(event.pointerId); fingers.set(event.pointerId, event); show(event);
  });
  canvas.addEventListener('pointermove', event => {
    const last = fingers.get(event.pointerId);
    if (!last) return show(event);
    fingers.set(event.pointerId, event);
    const other = [...fingers.values()].find(finger => finger.pointerId !== event.pointerId);
    const apart = finger => Math.hypot(finger.offsetX - other.offsetX, finger.offsetY - other.offsetY);
    if (other) move(apart(event) / Math.max(1, apart(last)), other.offsetX, other.offsetY);
    else move(1, 0, 0, event.offsetX - last.offsetX, event.offsetY - last.offsetY);
  });
  for (const end of ['pointerup', 'pointercancel']) canvas.addEventListener(end, event => fingers.delete(event.pointerId));
  canvas.addEventListener('pointerleave', event => {
    if (event.pointerType === 'mouse') { near = null; tip.hidden = true; maps.forEach(map => map.drawMarks()) }
  });
  canvas.addEventListener('wheel', event => {
    if (view.scale === 1 && event.deltaY > 0) return;  // the page scrolls on
    event.preventDefault(); move(2 ** (-event.deltaY / 300), event.offsetX, event.offsetY); show(event);
  }, {passive: false});
  for (const button of figure.querySelectorAll('button'))
    button.onclick = () => move(Number(button.value), width / 2, height / 2);
  const fit = () => { width = canvas.clientWidth; height = canvas.clientHeight; move(1, 0, 0) };
  fit();
  new ResizeObserver(fit).observe(canvas);
  return {draw, drawPoints, drawMarks, view, waiting: () => waiting, count: () => points.x.reduce((sum, _, i) => sum + isShown(i), 0), total: points.x.length};
});

function describe(points, n, name, event) {
  const sheet = document.getElementById('sheet-' + points.samples), {columns, texts} = data.samples[points.samples];
  tip.replaceChildren();
  if (columns) {
    const picture = tip.appendChild(document.createElement('canvas')), side = sheet.naturalWidth / columns;
    picture.width = picture.height = 128;
    picture.getContext('2d').drawImage(sheet, n % columns * side, Math.floor(n / columns) * side, side, side, 0, 0, 128, 128);
  }
  if (name) tip.appendChild(document.createElement('b')).textContent = name;
  if (texts) tip.appendChild(document.createElement('span')).textContent = texts[n];
  tip.hidden = false;
  const left = event.clientX + 14, top = event.clientY + 14;
  tip.style.left = Math.max(4, Math.min(left, innerWidth - tip.offsetWidth - 8)) + 'px';
  tip.style.top = (top + tip.offsetHeight > innerHeight ? Math.max(4, event.clientY - tip.offsetHeight - 14) : top) + 'px';
}

const filter = () => {
  boxes.forEach((box, i) => shown[i] = box.checked);
  maps.forEach(map => map.draw());
  const [count, total] = ['count', 'total'].map(key => maps.reduce((sum, map) => sum + (key === 'count' ? map.count() : map.total), 0));
  document.getElementById('count').textContent = `${format(count)} of ${format(total)} points are shown.`;
};
boxes.forEach(box => box.onchange = filter);
document.querySelectorAll('.key button').forEach(button => button.onclick = () => {
  boxes.forEach(box => box.checked = button.value === 'all');
  filter();
});
filter();
