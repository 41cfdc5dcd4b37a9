package rules

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/resource"
)

// NameColumn is the first column of most tables: metadata.name.
func NameColumn() resource.Column {
	return resource.Column{Name: "Name", Type: "string", Format: "name", Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]}
}

// AgeColumn is the column for the age of an object; its cell is a resource.Since.
func AgeColumn() resource.Column {
	return resource.Column{Name: "Age", Type: "string", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]}
}
