// A click on a heading sorts its table, with empty cells last in both orders.
for (const table of document.querySelectorAll('table.sortable')) {
  table.querySelectorAll('thead th').forEach((th, column) => {
    th.tabIndex = 0; th.setAttribute('role', 'button'); th.title = 'Sort by this column';
    const sort = () => {
      const down = th.getAttribute('aria-sort') === 'descending', body = table.tBodies[0];
      table.querySelectorAll('th').forEach(other => other.removeAttribute('aria-sort'));
      th.setAttribute('aria-sort', down ? 'ascending' : 'descending');
      const key = row => { const v = row.cells[column].dataset.value; return v === undefined || v === '' ? NaN : Number(v) };
      const text = row => row.cells[column].textContent;
      [...body.rows].sort((a, b) => {
        const x = key(a), y = key(b), sign = down ? 1 : -1;
        if (isNaN(x) && isNaN(y)) return sign * text(a).localeCompare(text(b));
        return isNaN(x) ? 1 : isNaN(y) ? -1 : sign * (x - y);
      }).forEach(row => body.append(row));
    };
    th.addEventListener('click', sort);
    th.addEventListener('keydown', e => { if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); sort() } });
  });
}
// A link to a run opens the run's details.
const unfold = () => { const run = document.getElementById(location.hash.slice(1)); if (run) run.open = true };
addEventListener('hashchange', unfold); unfold();
// Each chart is drawn from the JSON in its element. Charts in one group have one legend, which hides a series in all of them.
const plots = [...document.querySelectorAll('div.plot')];
for (const div of plots) {
  const figure = JSON.parse(div.querySelector('script').textContent);
  figure.layout.font = {family: getComputedStyle(document.body).fontFamily};
  div.replaceChildren();
  Plotly.newPlot(div, figure.data, figure.layout, {responsive: true, displaylogo: false});
  const others = plots.filter(other => other !== div && other.dataset.group === div.dataset.group);
  if (figure.layout.showlegend) div.on('plotly_restyle', ([update, series]) =>
    others.forEach(other => Plotly.restyle(other, update, series)));
}
