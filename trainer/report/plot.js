// SPDX-License-Identifier: Apache-2.0
//
// Plot: an SVG to draw on. Screen readers get the label of the figure instead.

const stroke = (name, more = '') => `fill:none;stroke:${color(name)};${more}`;
const fill = (name, more = '') => `fill:${color(name)};${more}`;

class Plot {
  constructor(width, height) {
    this.node = svg('svg', {width, height, 'aria-hidden': 'true'});
  }
  line(x1, y1, x2, y2, style = stroke('line')) {
    this.node.append(svg('line', {x1, y1, x2, y2, style}));
  }
  rect(x, y, width, height, style) {
    this.node.append(svg('rect', {x, y, width, height, style}));
  }
  circle(cx, cy, r, style) {
    this.node.append(svg('circle', {cx, cy, r, style}));
  }
  path(d, style) {
    this.node.append(svg('path', {d, style}));
  }
  // align: start, middle or end. look: classes, 'strong' and 'halo' (to be read on a figure).
  text(x, y, words, align = 'start', look = '') {
    this.node.append(svg('text', {x, y, 'text-anchor': align, class: look}, words));
  }
}
