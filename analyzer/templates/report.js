// Draws the figures that lie in the page as JSON. Paper is narrower than a screen: before printing they
// are laid out for it, and back again afterwards.
(function () {
  const PAPER_PX = 703;
  const plots = Array.from(document.querySelectorAll(".plot"));
  const printed = (div) => (div.closest(".distributions") ? (PAPER_PX - 30) / 3 : PAPER_PX);
  const drawn = plots.map(function (div) {
    const said = JSON.parse(document.getElementById(div.dataset.figure).textContent);
    const config = JSON.parse(document.getElementById(div.dataset.config).textContent);
    return Plotly.newPlot(div, said.data, said.layout, config);
  });
  Promise.all(drawn).then(function () { document.documentElement.dataset.drawn = "yes"; });
  if (document.body.classList.contains("paper")) return;
  window.addEventListener("beforeprint", function () {
    plots.forEach(function (div) { Plotly.relayout(div, { width: printed(div), autosize: false }); });
  });
  window.addEventListener("afterprint", function () {
    plots.forEach(function (div) { Plotly.relayout(div, { width: null, autosize: true }); });
  });
})();
