package podspec

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
)

// noPath stands for every path in a first pass, in which only it matters whether there are
// errors: what is below it is noPath as well. Nearly all pod specs are right, and the paths that
// could be named in an error are hundreds.
var noPath = field.NewPath("no path")

// withPathsIfWrong adds the errors that check finds at p. It checks without paths first.
func withPathsIfWrong(e *rules.Errors, p *field.Path, check func(e *rules.Errors, p *field.Path)) {
	var found rules.Errors
	if check(&found, noPath); len(found) > 0 {
		check(e, p)
	}
}

// childOf returns the path of a field, and of one in it for each name in more.
func childOf(p *field.Path, name string, more ...string) *field.Path {
	if p == noPath {
		return p
	}
	return p.Child(name, more...)
}

// itemOf returns the path of an item of a list.
func itemOf(p *field.Path, i int) *field.Path {
	if p == noPath {
		return p
	}
	return p.Index(i)
}

// entryOf returns the path of an entry of a map.
func entryOf(p *field.Path, key string) *field.Path {
	if p == noPath {
		return p
	}
	return p.Key(key)
}
