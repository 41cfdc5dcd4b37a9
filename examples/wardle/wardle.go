// Command wardle is the sample API server of Kubernetes, written with Kelson: the
// group wardle.example.com, with flunders in two versions and fischers, which
// keep flunders from having names.
//
// It runs alone:
//
//	wardle --secure-port 8443 --data-dir ./wardle-data
//
// or behind another API server, as the server of an APIService. Then that one
// says who users are, and what they may do:
//
//	wardle --secure-port 8443 --data-dir ./wardle-data --kubeconfig parent.kubeconfig
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/resource"
)

const (
	group       = "wardle.example.com"
	typeFlunder = "Flunder"
	typeFischer = "Fischer"
)

func main() {
	port := flag.Int("secure-port", 8443, "port to listen on")
	dir := flag.String("data-dir", "", "folder to keep objects in; without one they are lost at the end")
	parent := flag.String("kubeconfig", "", "kubeconfig of the API server that this one is behind")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, newServer(*dir, *port), *parent); err != nil {
		fmt.Fprintln(os.Stderr, "wardle:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, server *kelson.Server, parent string) error {
	if parent != "" {
		if err := server.DelegateTo(ctx, parent); err != nil {
			return err
		}
	}
	return server.Run(ctx)
}

// newServer makes the server.
func newServer(dir string, port int) *kelson.Server {
	server := &kelson.Server{
		Name: "wardle", Addr: fmt.Sprintf("127.0.0.1:%d", port), DataDir: dir,
		Groups: []resource.Group{{Name: group, Resources: []resource.Definition{flunders(), fischers()}}},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	server.Admission = []admission.Plugin{banFlunder{server}}
	return server
}

func flunders() resource.Definition {
	old := resource.Plain("v1alpha1", func(f *FlunderV1Alpha1) {
		if f.Spec.ReferenceType == "" && f.Spec.Reference != "" {
			f.Spec.ReferenceType = typeFlunder
		}
	})
	old.ToHub, old.FromHub = resource.Convert(toHub), resource.Convert(fromHub)
	old.Deprecation = group + "/v1alpha1 Flunder is deprecated"
	return resource.Definition{
		Group: group, Resource: "flunders", Kind: "Flunder", Namespaced: true,
		Versions: []resource.Version{resource.Plain[Flunder]("v1beta1", nil), old},
		Strategy: resource.Rules[*Flunder]{
			Validate: func(_ context.Context, f *Flunder) field.ErrorList { return validate(&f.Spec, field.NewPath("spec")) },
		}.Strategy(),
	}
}

func fischers() resource.Definition {
	return resource.Definition{
		Group: group, Resource: "fischers", Kind: "Fischer",
		Versions: []resource.Version{resource.Plain[Fischer]("v1alpha1", nil)},
	}
}

func toHub(f *FlunderV1Alpha1) (*Flunder, error) {
	out := &Flunder{TypeMeta: f.TypeMeta, ObjectMeta: f.ObjectMeta, Status: f.Status}
	out.Spec.ReferenceType = f.Spec.ReferenceType
	if f.Spec.ReferenceType == typeFischer {
		out.Spec.FischerReference = f.Spec.Reference
	} else {
		out.Spec.FlunderReference = f.Spec.Reference
	}
	return out, nil
}

func fromHub(f *Flunder) (*FlunderV1Alpha1, error) {
	out := &FlunderV1Alpha1{TypeMeta: f.TypeMeta, ObjectMeta: f.ObjectMeta, Status: f.Status}
	out.Spec.ReferenceType, out.Spec.Reference = f.Spec.ReferenceType, f.Spec.FlunderReference
	if f.Spec.ReferenceType == typeFischer {
		out.Spec.Reference = f.Spec.FischerReference
	}
	return out, nil
}

func validate(s *FlunderSpec, path *field.Path) field.ErrorList {
	flunder, fischer := path.Child("flunderReference"), path.Child("fischerReference")
	switch {
	case s.FlunderReference != "" && s.FischerReference != "":
		return field.ErrorList{field.Invalid(fischer, s.FischerReference, "cannot be set with flunderReference at the same time")}
	case s.ReferenceType != "" && s.ReferenceType != typeFlunder && s.ReferenceType != typeFischer:
		return field.ErrorList{field.Invalid(path.Child("referenceType"), s.ReferenceType, "must be Flunder or Fischer")}
	case (s.FlunderReference != "") != (s.ReferenceType == typeFlunder):
		return field.ErrorList{field.Invalid(flunder, s.FlunderReference, "is set if, and only if, referenceType is Flunder")}
	case (s.FischerReference != "") != (s.ReferenceType == typeFischer):
		return field.ErrorList{field.Invalid(fischer, s.FischerReference, "is set if, and only if, referenceType is Fischer")}
	}
	return nil
}

// banFlunder is an admission plugin: flunders cannot have names that a fischer
// disallows.
type banFlunder struct{ server *kelson.Server }

// Name implements admission.Plugin.
func (banFlunder) Name() string { return "BanFlunder" }

// Handles implements admission.Plugin.
func (banFlunder) Handles(t admission.Target) bool {
	return t == admission.Target{Operation: admission.Create, Group: group, Resource: "flunders"}
}

// Validate implements admission.Validator.
func (b banFlunder) Validate(ctx context.Context, a *admission.Attributes) error {
	fischers, err := b.server.Objects(group, "fischers").List(ctx, "")
	if err != nil {
		return err
	}
	for _, obj := range fischers {
		if slices.Contains(obj.(*Fischer).DisallowedFlunders, a.Name) {
			return a.Forbidden(errors.New("this name may not be used, please change the resource name"))
		}
	}
	return nil
}
