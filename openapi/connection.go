package openapi

import (
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/apikeel/kelson/resource"
)

// connections returns the paths of a subresource that opens connections. What
// goes over them is for documents a string, whatever it is.
func (e *endpoint) connections(c *resource.Connect) []path {
	item := e.at + "/"
	namespaced := ""
	var scope []parameter
	if e.namespaced {
		item += "namespaces/{namespace}/"
		namespaced = "Namespaced"
		scope = append(scope, e.options.namespace)
	}
	item += e.resource + "/{name}/" + e.subresource
	scope = append(scope, pathParameter("name", "name of the "+e.kind.Kind))
	options := optionParameters(c)
	if c.Text {
		op := e.operation("get", "get", "read", e.name(namespaced), "read "+e.subresource+" of the specified "+e.parent, scope, options)
		op.produces = append([]string{"text/plain"}, e.options.media.objects...)
		op.responses = []response{{code: http.StatusOK}}
		return []path{shareParameters(path{path: item, operations: []operation{op}})}
	}
	connect := func(at, suffix string, scope []parameter) path {
		p := path{path: at}
		for _, method := range c.Methods {
			op := e.operation(strings.ToLower(method), "connect", "connect", title(method)+e.name(namespaced)+suffix,
				"connect "+method+" requests to "+e.subresource+" of "+e.parent, scope, options)
			op.parameters = slices.DeleteFunc(op.parameters, func(x parameter) bool { return x == e.options.pretty })
			op.produces = []string{anyMedia}
			op.responses = []response{{code: http.StatusOK}}
			p.operations = append(p.operations, op)
		}
		return shareParameters(p)
	}
	paths := []path{connect(item, "", scope)}
	if c.Path {
		paths = append(paths, connect(item+"/{path}", "WithPath", append(slices.Clone(scope), pathParameter("path", "path to the resource"))))
	}
	return paths
}

// optionParameters returns the options of a connection, if their type says
// something of them.
func optionParameters(c *resource.Connect) []parameter {
	options, ok := reflect.ValueOf(c.Options()).Elem().Interface().(interface{ SwaggerDoc() map[string]string })
	if !ok {
		return nil
	}
	return queryParameters(options)
}
