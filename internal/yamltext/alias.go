package yamltext

import (
	"bytes"
	"math"

	yaml "go.yaml.in/yaml/v3"
)

// An alias stands for all of the value that its anchor names, so that a text of 13 KB may be JSON
// of 10 MB: a thousand aliases of a long string. The YAML library bounds how many values come of
// that, not how many bytes.

// hasAliases reports whether a text may have anchors and aliases of them.
func hasAliases(text []byte) bool { return hasName(text, '&') && hasName(text, '*') }

// hasName reports whether a mark may be somewhere at the beginning of a word. A text can be UTF-16,
// with a zero on either side, and have line breaks that are not ASCII.
func hasName(text []byte, mark byte) bool {
	for i := 0; ; i++ {
		at := bytes.IndexByte(text[i:], mark)
		if at < 0 {
			return false
		}
		i += at
		begins := i == 0 || text[i-1] >= 0x80 || bytes.IndexByte([]byte("\x00 \t\r\n[{,:-?"), text[i-1]) >= 0
		if begins && i+1 < len(text) && (text[i+1] > ' ' || text[i+1] == 0) {
			return true
		}
	}
}

// aliasedMemory is how many bytes it takes at most to read a YAML text whose aliases are replaced by
// their values. The text is parsed for that, but not expanded.
func aliasedMemory(text []byte) (int64, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return 0, err
	}
	w := weights{}
	return w.of(&document), nil
}

// weights are the memory that anchored values take: 0 for one that is being computed, which is an
// error of the text if it is asked for then.
type weights map[*yaml.Node]int64

func (w weights) of(n *yaml.Node) int64 {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
		if known, ok := w[n]; ok {
			return known
		}
	}
	if n.Anchor != "" {
		w[n] = 0
	}
	bytes := perValue + int64(len(n.Value))*perByte
	for _, child := range n.Content {
		bytes = min(bytes+w.of(child), math.MaxInt64/2)
	}
	if n.Anchor != "" {
		w[n] = bytes
	}
	return bytes
}
