package jsonstruct

import "github.com/apikeel/kelson/internal/jsonscan"

// maxDepth limits the recursion.
const maxDepth = 200

// parser reads objects and lists from a text.
type parser struct {
	jsonscan.Scanner
	depth int
	mode  mode
	list  bool // below a list, where nothing is there to be merged with
}

// merges reports whether values that are there are merged with.
func (p *parser) merges() bool { return p.mode != modeNew && !p.list }

// null reads null, if that is next. In a list of a patch it is not known.
func (p *parser) null() bool {
	return p.Space() == 'n' && (p.mode == modeNew || !p.list) && p.Word("null")
}

// object reads an object. member reads the value of a field.
func (p *parser) object(member func(name string) bool) bool {
	if p.depth++; p.Space() != '{' || p.depth > maxDepth {
		return false
	}
	p.At++
	if p.Space() == '}' {
		p.At++
		p.depth--
		return true
	}
	for {
		if p.Space() != '"' {
			return false
		}
		name, ok := p.String()
		if !ok || p.Space() != ':' {
			return false
		}
		p.At++
		if !member(name) {
			return false
		}
		c := p.Space()
		p.At++
		if c == '}' {
			p.depth--
			return true
		}
		if c != ',' {
			return false
		}
	}
}

// array reads a list. item reads an item.
func (p *parser) array(item func() bool) bool {
	if p.depth++; p.Space() != '[' || p.depth > maxDepth {
		return false
	}
	p.At++
	if p.Space() == ']' {
		p.At++
		p.depth--
		return true
	}
	for {
		if !item() {
			return false
		}
		c := p.Space()
		p.At++
		if c == ']' {
			p.depth--
			return true
		}
		if c != ',' {
			return false
		}
	}
}

// skip reads a value of any kind.
func (p *parser) skip() bool {
	switch c := p.Space(); c {
	case '{':
		return p.object(func(string) bool { return p.skip() })
	case '[':
		return p.array(p.skip)
	case '"':
		_, ok := p.String()
		return ok
	case 't':
		return p.Word("true")
	case 'f':
		return p.Word("false")
	case 'n':
		return p.Word("null")
	default:
		_, _, ok := p.Number()
		return ok
	}
}
