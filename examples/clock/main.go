// Command clock serves kinds that are kept nowhere: a clock tells the time of its
// zone when somebody looks.
//
//	clock --secure-port 8443
//	kubectl get clocks
package main

import (
	"context"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/serverflags"
)

const group = "clock.example.com"

// Clock shows the time of a zone.
type Clock struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Time metav1.MicroTime `json:"time" doc:"What it is now."`
	Zone string           `json:"zone" doc:"The time zone, as tzdata calls it."`
}

// DeepCopyObject implements runtime.Object.
func (c *Clock) DeepCopyObject() runtime.Object { return resource.Copy(c) }

// zones is where clocks come from: a resource.Lister.
type zones map[string]string

// Get implements resource.Lister.
func (z zones) Get(_ context.Context, _, name string) (resource.Object, error) {
	place, err := time.LoadLocation(z[name])
	if z[name] == "" || err != nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: group, Resource: "clocks"}, name)
	}
	return &Clock{ObjectMeta: metav1.ObjectMeta{Name: name}, Time: metav1.MicroTime{Time: time.Now().In(place)}, Zone: z[name]}, nil
}

// List implements resource.Lister.
func (z zones) List(ctx context.Context, _ string) (all []resource.Object, err error) {
	for name := range z {
		if clock, err := z.Get(ctx, "", name); err == nil {
			all = append(all, clock)
		}
	}
	slices.SortFunc(all, func(a, b resource.Object) int { return strings.Compare(a.GetName(), b.GetName()) })
	return all, nil
}

func newServer() *kelson.Server {
	return &kelson.Server{Name: "clock", Groups: []resource.Group{{Name: group, Resources: []resource.Definition{{
		Group: group, Resource: "clocks", Kind: "Clock", Verbs: []string{"get", "list"},
		Versions: []resource.Version{resource.Plain[Clock]("v1", nil)},
		Source:   zones{"utc": "UTC", "berlin": "Europe/Berlin", "kolkata": "Asia/Kolkata"},
		Columns:  []resource.Column{{Name: "Name", Type: "string", Format: "name"}, {Name: "Time", Type: "string"}},
		Cells:    resource.CellsFunc(func(c *Clock) []any { return []any{c.Name, c.Time.Format("15:04:05")} }),
	}}}}}
}

func main() { serverflags.Main(newServer()) }
