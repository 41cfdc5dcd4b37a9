package openapi

import (
	"bytes"
	"encoding/json"

	yaml "go.yaml.in/yaml/v3"
)

// nodeParser makes the nodes of YAML that a text in JSON stands for, in the order
// of the text. It believes that the text is JSON where it does not need to know.
type nodeParser struct {
	text []byte
	at   int
}

// peek returns the next byte that is no white space, 0 at the end.
func (p *nodeParser) peek() byte {
	for ; p.at < len(p.text); p.at++ {
		if c := p.text[p.at]; c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
	}
	return 0
}

func (p *nodeParser) node() (*yaml.Node, bool) {
	switch p.peek() {
	case 0:
		return nil, false
	case '{':
		return p.collection(&yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Style: yaml.FlowStyle}, '}')
	case '[':
		return p.collection(&yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Style: yaml.FlowStyle}, ']')
	case '"':
		s, ok := p.string()
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.DoubleQuotedStyle, Value: s}, ok
	}
	end := bytes.IndexAny(p.text[p.at:], ",]} \n\t\r")
	if end < 0 {
		end = len(p.text) - p.at
	}
	word := string(p.text[p.at : p.at+end])
	p.at += end
	tag := "!!int"
	switch {
	case word == "true", word == "false":
		tag = "!!bool"
	case word == "null":
		tag = "!!null"
	case !json.Valid([]byte(word)):
		return nil, false
	case bytes.ContainsAny([]byte(word), ".eE"):
		tag = "!!float"
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: word}, true
}

// collection reads a list, or an object, in which names and values take turns.
func (p *nodeParser) collection(n *yaml.Node, end byte) (*yaml.Node, bool) {
	p.at++
	if p.peek() == end {
		p.at++
		return n, true
	}
	for {
		child, ok := p.node()
		if ok && end == '}' {
			n.Content = append(n.Content, child)
			if ok = child.Tag == "!!str" && p.peek() == ':'; ok {
				p.at++
				child, ok = p.node()
			}
		}
		if !ok {
			return nil, false
		}
		n.Content = append(n.Content, child)
		c := p.peek()
		p.at++
		if c == end {
			return n, true
		}
		if c != ',' {
			return nil, false
		}
	}
}

func (p *nodeParser) string() (string, bool) {
	start, escaped := p.at, false
	for p.at++; p.at < len(p.text); p.at++ {
		switch p.text[p.at] {
		case '\\':
			escaped = true
			p.at++
		case '"':
			p.at++
			raw := p.text[start:p.at]
			if !escaped {
				return string(raw[1 : len(raw)-1]), true
			}
			var s string
			err := json.Unmarshal(raw, &s)
			return s, err == nil
		}
	}
	return "", false
}
