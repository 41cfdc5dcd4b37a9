package podspec

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
)

// nowhere is the path of a value for those who only ask whether it is right: all that is below
// it is nowhere as well. Nearly all pod specs are right, and the paths that could be named in
// an error are hundreds. So a spec is checked nowhere first, and again with paths if there is
// an error to report.
var nowhere = field.NewPath("nowhere")

// whereWrong adds the errors that check finds at p.
func whereWrong(e *rules.Errors, p *field.Path, check func(e *rules.Errors, p *field.Path)) {
	var found rules.Errors
	if check(&found, nowhere); len(found) > 0 {
		check(e, p)
	}
}

// childOf returns the path of a field, and of one in it for each name in more.
func childOf(p *field.Path, name string, more ...string) *field.Path {
	if p == nowhere {
		return p
	}
	return p.Child(name, more...)
}

// itemOf returns the path of an item of a list.
func itemOf(p *field.Path, i int) *field.Path {
	if p == nowhere {
		return p
	}
	return p.Index(i)
}

// entryOf returns the path of an entry of a map.
func entryOf(p *field.Path, key string) *field.Path {
	if p == nowhere {
		return p
	}
	return p.Key(key)
}
