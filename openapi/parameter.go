package openapi

import (
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// parameter of an operation.
type parameter struct {
	name, in, description string
	kind                  string // string, boolean, integer
	required              bool
}

// parameters are the parameters and media types that operations on resources have in common.
type parameters struct {
	media                                                      mediaTypes
	namespace, pretty                                          parameter
	get, list, create, update, patch, delete, deleteCollection []parameter
}

func newParameters(media mediaTypes) *parameters {
	p := &parameters{
		media:     media,
		namespace: pathParameter("namespace", "object name and auth scope, such as for teams and projects"),
		pretty: parameter{name: "pretty", in: "query", kind: "string",
			description: "If 'true', then the output is pretty printed. Defaults to 'false' unless the user-agent indicates a browser or command-line HTTP tool (curl and wget)."},
		get:    queryParameters(metav1.GetOptions{}),
		list:   queryParameters(metav1.ListOptions{}),
		create: queryParameters(metav1.CreateOptions{}),
		update: queryParameters(metav1.UpdateOptions{}),
		patch:  queryParameters(metav1.PatchOptions{}),
		delete: queryParameters(metav1.DeleteOptions{}),
	}
	p.deleteCollection = slices.Concat(p.delete, slices.DeleteFunc(slices.Clone(p.list), func(x parameter) bool {
		return x.name == "watch" || x.name == "allowWatchBookmarks"
	}))
	return p
}

func pathParameter(name, description string) parameter {
	return parameter{name: name, in: "path", description: description, kind: "string", required: true}
}

// queryParameters returns the fields of an options type as parameters, with
// what the type says of them. Fields that are structures cannot be given in a
// query.
func queryParameters(options interface{ SwaggerDoc() map[string]string }) []parameter {
	docs := options.SwaggerDoc()
	var parameters []parameter
	for i, t := 0, reflect.TypeOf(options); i < t.NumField(); i++ {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		typ := field.Type
		if typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if name == "" || typ.Kind() == reflect.Struct || typ.Kind() == reflect.Interface {
			continue
		}
		if typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		kind := "string"
		switch typ.Kind() {
		case reflect.Bool:
			kind = "boolean"
		case reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64, reflect.Int:
			kind = "integer"
		}
		parameters = append(parameters, parameter{name: name, in: "query", description: docs[name], kind: kind})
	}
	return parameters
}
