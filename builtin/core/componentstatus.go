package core

//lint:file-ignore SA1019 the kind is deprecated and still served

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/internal/protect"
	"github.com/apikeel/kelson/resource"
)

// Component is a component of the control plane with a health check.
type Component struct {
	Name string
	// Check returns the health and the message of the component; an error if it could
	// not be reached.
	Check func(ctx context.Context) (status corev1.ConditionStatus, message string, err error)
}

// ComponentStatuses defines componentstatuses, which are computed when they are read.
func ComponentStatuses(components []Component) resource.Definition {
	version := resource.VersionOf[corev1.ComponentStatus, corev1.ComponentStatusList, *corev1.ComponentStatus, *corev1.ComponentStatusList]("v1", nil)
	version.Deprecation = "v1 ComponentStatus is deprecated in v1.19+"
	return resource.Definition{
		Resource:   "componentstatuses",
		Kind:       "ComponentStatus",
		ShortNames: []string{"cs"},
		Versions:   []resource.Version{version},
		Source:     componentSource(components),
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Status", Type: "string", Description: "Status of the component conditions"},
			{Name: "Message", Type: "string", Description: "Message of the component conditions"},
			{Name: "Error", Type: "string", Description: "Error of the component conditions"},
		},
		Cells: resource.CellsFunc(func(c *corev1.ComponentStatus) []any {
			cells := []any{c.Name, "Unknown", "", ""}
			for _, condition := range c.Conditions {
				if condition.Type == corev1.ComponentHealthy {
					cells[1], cells[2], cells[3] = "Unhealthy", condition.Message, condition.Error
					if condition.Status == corev1.ConditionTrue {
						cells[1] = "Healthy"
					}
					break
				}
			}
			return cells
		}),
	}
}

// componentSource implements resource.Lister by health checks.
type componentSource []Component

func (s componentSource) Get(ctx context.Context, _, name string) (resource.Object, error) {
	for _, c := range s {
		if c.Name == name {
			return c.status(ctx), nil
		}
	}
	// kube-apiserver has the singular here.
	return nil, errors.NewNotFound(corev1.Resource("componentstatus"), name)
}

func (s componentSource) List(ctx context.Context, _ string) ([]resource.Object, error) {
	objs := make([]resource.Object, len(s))
	var all protect.Group
	for i, c := range s {
		all.Go(func() { objs[i] = c.status(ctx) })
	}
	all.Wait()
	return objs, nil
}

func (c Component) status(ctx context.Context) *corev1.ComponentStatus {
	status, message, err := c.Check(ctx)
	condition := corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: status, Message: message}
	if err != nil {
		condition.Error = err.Error()
	}
	return &corev1.ComponentStatus{ObjectMeta: metav1.ObjectMeta{Name: c.Name}, Conditions: []corev1.ComponentCondition{condition}}
}
