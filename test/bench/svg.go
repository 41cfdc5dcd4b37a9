package main

import (
	"encoding/xml"
	"fmt"
	"math"
	"strings"
)

// Colours of texts, lines and series. They have contrast on white as well as on a dark
// page, since an image does not know on which it is shown.
const (
	textColour = "#6e7781"
	lineColour = "#8c959f"
)

var seriesColours = []string{"#d4712a", "#3f7fdb", "#2c9a5b", "#a35fc4", "#c2487a"}

func seriesColour(i int) string { return seriesColours[i%len(seriesColours)] }

// drawing writes the elements of an SVG.
type drawing struct {
	b             strings.Builder
	width, height int
}

func (d *drawing) text(x, y float64, anchor, class, text string) {
	var escaped strings.Builder
	_ = xml.EscapeText(&escaped, []byte(text))
	fmt.Fprintf(&d.b, `<text x="%s" y="%s" text-anchor="%s" class="%s">%s</text>`+"\n", px(x), px(y), anchor, class, &escaped)
}

func (d *drawing) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&d.b, `<line x1="%s" y1="%s" x2="%s" y2="%s" class="%s"/>`+"\n", px(x1), px(y1), px(x2), px(y2), class)
}

func (d *drawing) rect(x, y, w, h float64, colour string) {
	fmt.Fprintf(&d.b, `<rect x="%s" y="%s" width="%s" height="%s" rx="1.5" fill="%s"/>`+"\n", px(x), px(y), px(w), px(h), colour)
}

func (d *drawing) path(points [][2]float64, colour string) {
	var p strings.Builder
	for i, at := range points {
		p.WriteString([]string{"M", " L"}[min(i, 1)] + px(at[0]) + " " + px(at[1]))
	}
	fmt.Fprintf(&d.b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", &p, colour)
	for _, at := range points {
		fmt.Fprintf(&d.b, `<circle cx="%s" cy="%s" r="2.8" fill="%s"/>`+"\n", px(at[0]), px(at[1]), colour)
	}
}

// String is the whole file.
func (d *drawing) String() string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="system-ui, sans-serif" font-size="11">`+"\n"+
		"<style>text { fill: %s; } .title { font-size: 13px; font-weight: 600; } .grid { stroke: %s; stroke-opacity: 0.3; } .axis { stroke: %s; } .whisker { stroke: %s; stroke-width: 1.5; }</style>\n",
		d.width, d.height, d.width, d.height, textColour, lineColour, lineColour, textColour) + d.b.String() + "</svg>\n"
}

// px is a coordinate without digits that nobody sees.
func px(v float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") }

func (d *drawing) legend(x, y float64, series []string) {
	for i, name := range series {
		d.rect(x, y-8, 10, 10, seriesColour(i))
		d.text(x+15, y+1, "start", "", name)
		x += 32 + 6.2*float64(len(name))
	}
}

// barChart draws ratios as bars on a logarithmic scale that begins at 1.
type barChart struct {
	title  string
	series []string
	groups []barGroup
}

type barGroup struct {
	label string
	bars  []bar // one a series
}

type bar struct{ value, low, high float64 }

func (c barChart) svg() string {
	const left, right, top, barHeight, gap, bottom = 320.0, 60.0, 56.0, 9.0, 8.0, 24.0
	low, high := 1.0, 2.0
	for _, g := range c.groups {
		for _, b := range g.bars {
			if b.value > 0 {
				low, high = min(low, b.low), max(high, b.high)
			}
		}
	}
	rowHeight := barHeight*float64(max(1, len(c.series))) + gap
	d := &drawing{width: 860, height: int(top + rowHeight*float64(len(c.groups)) + bottom)}
	span := float64(d.width) - left - right
	x := func(v float64) float64 { return left + span*math.Log(v/low)/math.Log(high/low) }
	d.text(8, 20, "start", "title", c.title)
	d.legend(8, 40, c.series)
	end := float64(d.height) - bottom
	for _, tick := range ticks(low, high) {
		class := "grid"
		if tick == 1 {
			class = "axis"
		}
		d.line(x(tick), top-4, x(tick), end, class)
		d.text(x(tick), end+14, "middle", "", "×"+figures(tick))
	}
	for i, g := range c.groups {
		y := top + rowHeight*float64(i)
		d.text(left-8, y+(rowHeight-gap)/2+4, "end", "", g.label)
		for j, b := range g.bars {
			at := y + barHeight*float64(j)
			if !(b.value > 0) {
				d.text(left+4, at+8, "start", "", "–")
				continue
			}
			from, to := min(x(1), x(b.value)), max(x(1), x(b.value))
			d.rect(from, at, max(1, to-from), barHeight-1, seriesColour(j))
			d.line(x(b.low), at+barHeight/2, x(b.high), at+barHeight/2, "whisker")
			d.text(max(x(b.high), x(1))+5, at+8, "start", "", "×"+figures(b.value))
		}
	}
	return d.String()
}

// lineChart draws panels, each with a line a series, on logarithmic scales.
type lineChart struct {
	title  string
	xLabel string
	series []string
	panels []panel
}

type panel struct {
	title string
	lines [][]point // one a series
}

type point struct{ x, y float64 }

func (c lineChart) svg() string {
	const columns, panelWidth, panelHeight, top = 3, 280.0, 190.0, 56.0
	rows := (len(c.panels) + columns - 1) / columns
	d := &drawing{width: int(panelWidth) * min(columns, max(1, len(c.panels))), height: int(top + panelHeight*float64(rows))}
	d.text(8, 20, "start", "title", c.title)
	d.legend(8, 40, c.series)
	for i, p := range c.panels {
		p.draw(d, panelWidth*float64(i%columns), top+panelHeight*float64(i/columns), panelWidth, panelHeight, c.xLabel)
	}
	return d.String()
}

func (p panel) draw(d *drawing, left, top, width, height float64, xLabel string) {
	const marginLeft, marginRight, marginTop, marginBottom = 52.0, 14.0, 24.0, 38.0
	xLow, xHigh, yLow, yHigh := math.Inf(1), 0.0, math.Inf(1), 0.0
	for _, line := range p.lines {
		for _, at := range line {
			if at.y > 0 {
				xLow, xHigh, yLow, yHigh = min(xLow, at.x), max(xHigh, at.x), min(yLow, at.y), max(yHigh, at.y)
			}
		}
	}
	d.text(left+8, top+12, "start", "", p.title)
	if xHigh == 0 {
		d.text(left+width/2, top+height/2, "middle", "", "not measured")
		return
	}
	// At least a decade is shown, so that noise does not look like growth.
	if yHigh/yLow < 10 {
		middle := math.Sqrt(yHigh * yLow)
		yLow, yHigh = middle/math.Sqrt(10), middle*math.Sqrt(10)
	}
	xHigh = max(xHigh, xLow*1.01)
	x := func(v float64) float64 {
		return left + marginLeft + (width-marginLeft-marginRight)*math.Log(v/xLow)/math.Log(xHigh/xLow)
	}
	y := func(v float64) float64 {
		return top + height - marginBottom - (height-marginTop-marginBottom)*math.Log(v/yLow)/math.Log(yHigh/yLow)
	}
	for _, tick := range ticks(yLow, yHigh) {
		d.line(x(xLow), y(tick), x(xHigh), y(tick), "grid")
		d.text(x(xLow)-5, y(tick)+4, "end", "", figures(tick))
	}
	d.line(x(xLow), y(yLow), x(xHigh), y(yLow), "axis")
	seen := map[float64]bool{}
	for _, line := range p.lines {
		for _, at := range line {
			if !seen[at.x] {
				seen[at.x] = true
				d.text(x(at.x), y(yLow)+14, "middle", "", short1000(at.x))
			}
		}
	}
	d.text(left+marginLeft+(width-marginLeft-marginRight)/2, top+height-10, "middle", "", xLabel)
	for i, line := range p.lines {
		var points [][2]float64
		for _, at := range line {
			if at.y > 0 {
				points = append(points, [2]float64{x(at.x), y(at.y)})
			}
		}
		if len(points) > 0 {
			d.path(points, seriesColour(i))
		}
	}
}

// ticks returns round numbers from low to high: powers of ten, and between them 2 and 5
// if there are few.
func ticks(low, high float64) []float64 {
	var all []float64
	steps := []float64{1, 2, 5}
	if high/low > 1000 {
		steps = steps[:1]
	}
	for power := math.Floor(math.Log10(low)); power <= math.Ceil(math.Log10(high)); power++ {
		for _, step := range steps {
			if v := step * math.Pow(10, power); v >= low*0.999 && v <= high*1.001 {
				all = append(all, v)
			}
		}
	}
	return all
}

// short1000 is a size as people write it on an axis: 20k, 1M.
func short1000(v float64) string {
	switch {
	case v >= 1e6:
		return figures(v/1e6) + "M"
	case v >= 1000:
		return figures(v/1000) + "k"
	}
	return figures(v)
}
