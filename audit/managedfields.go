package audit

import "encoding/json"

// This file cuts managedFields out of JSON without decoding it.

// withoutManagedFields returns the JSON of an object, list or table without
// metadata.managedFields. Everything else keeps its form and order.
func withoutManagedFields(object []byte) []byte {
	if !json.Valid(object) {
		return object
	}
	c := &cutter{text: object}
	c.members(c.skipSpace(0), func(key string, _, value, _ int) {
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

// cutter scans valid JSON and collects the ranges to cut. The position of a value is
// that of its first byte.
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

// metadata cuts managedFields out of a metadata object, with one of the commas around
// it.
func (c *cutter) metadata(at int) {
	c.members(at, func(key string, start, _, end int) {
		if key != "managedFields" {
			return
		}
		if next := c.skipSpace(end); c.text[next] == ',' {
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

// members calls visit for the members of an object; other values have none.
func (c *cutter) members(at int, visit func(key string, start, value, end int)) {
	if c.text[at] != '{' {
		return
	}
	for at = c.skipSpace(at + 1); c.text[at] != '}'; {
		start, end := at, c.end(at)
		var key string
		_ = json.Unmarshal(c.text[start:end], &key)
		value := c.skipSpace(c.skipSpace(end) + 1)
		end = c.end(value)
		visit(key, start, value, end)
		at = c.next(end)
	}
}

func (c *cutter) elements(at int, visit func(at int)) {
	if c.text[at] != '[' {
		return
	}
	for at = c.skipSpace(at + 1); c.text[at] != ']'; {
		visit(at)
		at = c.next(c.end(at))
	}
}

// next returns the position of the next member or element, or of the closing bracket.
func (c *cutter) next(at int) int {
	at = c.skipSpace(at)
	if c.text[at] == ',' {
		at = c.skipSpace(at + 1)
	}
	return at
}

// skipSpace skips white space.
func (c *cutter) skipSpace(at int) int {
	for at < len(c.text) && (c.text[at] == ' ' || c.text[at] == '\n' || c.text[at] == '\t' || c.text[at] == '\r') {
		at++
	}
	return at
}

// end returns the position after a value.
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
				return at // the end of a number or word before a closing bracket
			}
		case ',', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return at
			}
		}
	}
	return at
}
