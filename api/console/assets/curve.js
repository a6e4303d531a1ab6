// Draws the curve of a figure from the points in its `data-curve`, in the colours of the page.
"use strict";

const darkness = matchMedia("(prefers-color-scheme: dark)");
const compact = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function options(series, width) {
  const axis = { stroke: color("--faint"), grid: { stroke: color("--line") }, ticks: { stroke: color("--line") } };
  const strokes = [color("--accent"), color("--warn"), color("--live"), color("--bad")];
  return {
    width,
    height: 260,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    series: [{ label: "Day", value: "{YYYY}-{MM}-{DD}" }].concat(series.map((each, place) => ({
      label: each.label,
      stroke: strokes[place % strokes.length],
      dash: place ? [6, 3] : undefined,
      width: 2,
      points: { show: true, size: 5 },
      value: (_, value) => (value === null ? "" : value.toLocaleString()),
    }))),
    axes: [
      { ...axis, values: [[86400, "{YYYY}-{MM}-{DD}", null, null, null, null, null, null, 1]], space: 90, incrs: [86400, 7 * 86400, 28 * 86400] },
      { ...axis, size: 64, values: (_, values) => values.map((each) => compact.format(each)) },
    ],
    scales: { y: { range: (_, least, most) => [0, most * 1.05 || 1] } },
  };
}

function draw(figure) {
  const { x, series } = JSON.parse(figure.dataset.curve);
  let drawn = null;
  function redraw() {
    drawn?.destroy();
    drawn = new uPlot(options(series, figure.clientWidth), [x, ...series.map((each) => each.values)], figure);
  }
  figure.hidden = false;
  redraw();
  darkness.addEventListener("change", redraw);
  new ResizeObserver(() => {
    if (drawn.width !== figure.clientWidth) {
      drawn.setSize({ width: figure.clientWidth, height: drawn.height });
    }
  }).observe(figure);
}

for (const figure of document.querySelectorAll("figure.curve[data-curve]")) {
  draw(figure);
}
