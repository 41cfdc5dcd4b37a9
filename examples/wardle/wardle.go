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
//	wardle --secure-port 8443 --etcd-servers http://127.0.0.1:2379 --kubeconfig parent.kubeconfig
package main

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/serverflags"
	"github.com/apikeel/kelson/serverflags/stores"
)

const (
	group       = "wardle.example.com"
	typeFlunder = "Flunder"
	typeFischer = "Fischer"
)

func main() { serverflags.Main(newServer(), stores.All("")...) }

// newServer makes the server.
func newServer() *kelson.Server {
	server := &kelson.Server{
		Name:   "wardle",
		Groups: []resource.Group{{Name: group, Resources: []resource.Definition{flunders(), fischers()}}},
	}
	server.Admission = []admission.Plugin{banFlunder{server}}
	server.PostStartHooks = []kelson.Hook{{Name: "start-wardle-informers", Run: func(ctx context.Context) error { return watchFischers(ctx, server) }}}
	return server
}

// watchFischers logs which names are banned, with an informer on the server's own
// API.
func watchFischers(ctx context.Context, server *kelson.Server) error {
	user := request.User{Name: "system:apiserver", Groups: []string{"system:masters"}}
	client, err := dynamic.NewForConfig(&rest.Config{Host: "http://wardle", Transport: server.Loopback(user)})
	if err != nil {
		return err
	}
	fischers := schema.GroupVersionResource{Group: group, Version: "v1alpha1", Resource: "fischers"}
	informer := dynamicinformer.NewDynamicSharedInformerFactory(client, 0).ForResource(fischers).Informer()
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
		fischer := obj.(*unstructured.Unstructured)
		server.Logger.Info("names are banned", "fischer", fischer.GetName(), "names", fischer.Object["disallowedFlunders"])
	}})
	go informer.RunWithContext(ctx)
	return err
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
