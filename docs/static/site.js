// A box that scrolls sideways can be reached with the Tab key, so that the arrow keys scroll it; other boxes are no stops.
function markScrolling() {
  for (const box of document.querySelectorAll("pre, .table-wrapper, p:has(> img)")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

addEventListener("load", markScrolling);
addEventListener("resize", markScrolling);
