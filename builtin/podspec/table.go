package podspec

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/apikeel/kelson/resource"
)

// TemplateColumns returns the wide table columns about a pod template: containers, images and
// the selector of its pods, which selector describes.
func TemplateColumns(selector string) []resource.Column {
	return []resource.Column{
		{Name: "Containers", Type: "string", Priority: 1, Description: "Names of each container in the template."},
		{Name: "Images", Type: "string", Priority: 1, Description: "Images referenced by each container in the template."},
		{Name: "Selector", Type: "string", Priority: 1, Description: selector},
	}
}

// ContainerCells returns the cells for the first two of TemplateColumns.
func ContainerCells(containers []corev1.Container) (names, images string) {
	var n, i []string
	for _, c := range containers {
		n, i = append(n, c.Name), append(i, c.Image)
	}
	return strings.Join(n, ","), strings.Join(i, ",")
}
