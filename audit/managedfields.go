package audit

import "encoding/json"

// withoutManagedFields returns the JSON of an object, a list or a table without
// metadata.managedFields. All else keeps its form and order.
func withoutManagedFields(object []byte) []byte {
	if !json.Valid(object) {
		return object
	}
	c := &cutter{text: object}
	c.members(c.value(0), func(key string, _, value, _ int) {
		switch key {
		case "metadata":
			c.metadata(value)
		case "items":
			c.elements(value, c.object)
		case "rows":
			c.elements(value, func(row int) {
				c.members(row, func(key string, _, value, _ int) {
					if key == "object" {
						c.object(value)
					}
				})
			})
		}
	})
	if len(c.cuts) == 0 {
		return object
	}
	out := make([]byte, 0, len(object))
	at := 0
	for _, cut := range c.cuts {
		out = append(out, object[at:cut.from]...)
		at = cut.to
	}
	return append(out, object[at:]...)
}

// cutter walks over valid JSON and collects what is to be left out. Positions
// of values are those of their first byte.
type cutter struct {
	text []byte
	cuts []struct{ from, to int }
}

func (c *cutter) object(at int) {
	c.members(at, func(key string, _, value, _ int) {
		if key == "metadata" {
			c.metadata(value)
		}
	})
}

// metadata cuts the member out, with one of the commas around it.
func (c *cutter) metadata(at int) {
	c.members(at, func(key string, start, _, end int) {
		if key != "managedFields" {
			return
		}
		if next := c.value(end); c.text[next] == ',' {
			end = next + 1
		} else {
			for i := start - 1; i > at; i-- {
				if c.text[i] == ',' {
					start = i
					break
				}
			}
		}
		c.cuts = append(c.cuts, struct{ from, to int }{start, end})
	})
}

// members visits the members of an object; of anything else there are none.
func (c *cutter) members(at int, visit func(key string, start, value, end int)) {
	if c.text[at] != '{' {
		return
	}
	for at = c.value(at + 1); c.text[at] != '}'; {
		start, end := at, c.end(at)
		var key string
		_ = json.Unmarshal(c.text[start:end], &key)
		value := c.value(c.value(end) + 1)
		end = c.end(value)
		visit(key, start, value, end)
		at = c.next(end)
	}
}

func (c *cutter) elements(at int, visit func(at int)) {
	if c.text[at] != '[' {
		return
	}
	for at = c.value(at + 1); c.text[at] != ']'; {
		visit(at)
		at = c.next(c.end(at))
	}
}

// next returns where the next member or element begins, or the bracket.
func (c *cutter) next(at int) int {
	at = c.value(at)
	if c.text[at] == ',' {
		at = c.value(at + 1)
	}
	return at
}

// value skips white space.
func (c *cutter) value(at int) int {
	for at < len(c.text) && (c.text[at] == ' ' || c.text[at] == '\n' || c.text[at] == '\t' || c.text[at] == '\r') {
		at++
	}
	return at
}

// end returns where a value ends.
func (c *cutter) end(at int) int {
	depth := 0
	for ; at < len(c.text); at++ {
		switch c.text[at] {
		case '"':
			for at++; c.text[at] != '"'; at++ {
				if c.text[at] == '\\' {
					at++
				}
			}
			if depth == 0 {
				return at + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return at + 1
			}
			if depth < 0 {
				return at // a number or word before the bracket
			}
		case ',', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return at
			}
		}
	}
	return at
}
