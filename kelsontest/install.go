package kelsontest

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// install is what Start puts into a server.
type install struct {
	crds, webhooks, manifests []string // files and folders
	converted                 []string // names of definitions
}

// CRDs installs the custom resource definitions in files, or in the files of
// folders, and waits until they are served. What else is there is ignored.
func CRDs(paths ...string) Option {
	return func(s *settings) { s.install.crds = append(s.install.crds, paths...) }
}

// Convert makes custom resource definitions that CRDs installs call the webhook
// /convert of Server.Webhooks: widgets.example.com. Definitions that name a
// webhook themselves need not be listed.
func Convert(names ...string) Option {
	return func(s *settings) { s.install.converted = append(s.install.converted, names...) }
}

// WebhookConfigurations installs the admission webhooks in files, or in the files
// of folders. Those that name a service are to be served at Server.Webhooks. What
// else is there is ignored.
func WebhookConfigurations(paths ...string) Option {
	return func(s *settings) { s.install.webhooks = append(s.install.webhooks, paths...) }
}

// Manifests creates the objects in files, or in the files of folders, in the
// order in which they are there. CRDs come before, webhooks after them.
func Manifests(paths ...string) Option {
	return func(s *settings) { s.install.manifests = append(s.install.manifests, paths...) }
}

// Apply creates objects as Manifests does; those that are there already are
// replaced.
func (s *Server) Apply(ctx context.Context, paths ...string) error {
	objects, err := readAll(paths)
	if err != nil {
		return err
	}
	return s.installer(ctx).put(objects)
}

func (s *Server) install(in *install) error {
	if len(in.crds)+len(in.webhooks)+len(in.manifests) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	i := s.installer(ctx)
	crds, err := readAll(in.crds, "CustomResourceDefinition")
	if err != nil {
		return err
	}
	for _, crd := range crds {
		hooks, err := s.Webhooks()
		if err != nil {
			return err
		}
		if err := hooks.localizeConversion(crd, slices.Contains(in.converted, crd.GetName())); err != nil {
			return fmt.Errorf("%s: %w", crd.GetName(), err)
		}
	}
	manifests, err := readAll(in.manifests)
	if err != nil {
		return err
	}
	webhooks, err := readAll(in.webhooks, "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
	if err != nil {
		return err
	}
	for _, config := range webhooks {
		hooks, err := s.Webhooks()
		if err != nil {
			return err
		}
		if err := hooks.localizeAll(config); err != nil {
			return fmt.Errorf("%s: %w", config.GetName(), err)
		}
	}
	return i.put(slices.Concat(crds, manifests, webhooks))
}

// installer creates objects.
type installer struct {
	ctx    context.Context
	config *rest.Config
}

func (s *Server) installer(ctx context.Context) *installer { return &installer{ctx, s.admin().config} }

// put creates objects, or replaces them.
func (i *installer) put(objects []*unstructured.Unstructured) error {
	client, err := dynamic.NewForConfig(i.config)
	if err != nil {
		return err
	}
	finder, err := discovery.NewDiscoveryClientForConfig(i.config)
	if err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(finder))
	var made []*unstructured.Unstructured // definitions that are not known to be served
	for _, obj := range objects {
		gvk := obj.GroupVersionKind()
		resource, namespaced := schema.GroupVersionResource{Group: gvk.Group, Version: gvk.Version, Resource: "customresourcedefinitions"}, false
		if !isDefinition(obj) {
			// The definitions before an object may be what it is of.
			if len(made) > 0 {
				if err := i.awaitServed(finder, made); err != nil {
					return err
				}
				made = nil
				mapper.Reset()
			}
			mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
			if err != nil {
				return fmt.Errorf("%s %s: %w", gvk.Kind, obj.GetName(), err)
			}
			resource, namespaced = mapping.Resource, mapping.Scope.Name() == "namespace"
		}
		namespace := ""
		if namespaced {
			if namespace = obj.GetNamespace(); namespace == "" {
				namespace = metav1.NamespaceDefault
			}
		}
		if err := i.putOne(client.Resource(resource).Namespace(namespace), obj); err != nil {
			return fmt.Errorf("%s %s: %w", gvk.Kind, obj.GetName(), err)
		}
		if isDefinition(obj) {
			made = append(made, obj)
		}
	}
	return i.awaitServed(finder, made)
}

func isDefinition(obj *unstructured.Unstructured) bool {
	gvk := obj.GroupVersionKind()
	return gvk.Group == "apiextensions.k8s.io" && gvk.Kind == "CustomResourceDefinition"
}

func (i *installer) putOne(client dynamic.ResourceInterface, obj *unstructured.Unstructured) error {
	_, err := client.Create(i.ctx, obj, metav1.CreateOptions{})
	for apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		var live *unstructured.Unstructured
		if live, err = client.Get(i.ctx, obj.GetName(), metav1.GetOptions{}); err != nil {
			return err
		}
		obj.SetResourceVersion(live.GetResourceVersion())
		_, err = client.Update(i.ctx, obj, metav1.UpdateOptions{})
	}
	return err
}

// awaitServed waits until custom resources are in discovery.
func (i *installer) awaitServed(finder *discovery.DiscoveryClient, crds []*unstructured.Unstructured) error {
	for _, crd := range crds {
		group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
		plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
		versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
		for _, v := range versions {
			version, _ := v.(map[string]any)
			if served, _ := version["served"].(bool); !served {
				continue
			}
			name, _ := version["name"].(string)
			err := poll(i.ctx, func(context.Context) error {
				list, err := finder.ServerResourcesForGroupVersion(schema.GroupVersion{Group: group, Version: name}.String())
				if err != nil {
					return err
				}
				if !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == plural }) {
					return errors.New("it is not served")
				}
				return nil
			})
			if err != nil {
				return fmt.Errorf("%s in version %s: %w", crd.GetName(), name, err)
			}
		}
	}
	return nil
}

// readAll reads the objects in files, or in the files of folders, that are of
// some kinds; none means any.
func readAll(paths []string, kinds ...string) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for _, path := range paths {
		files, err := filesOf(path)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			objects, err := readFile(file)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			for _, obj := range objects {
				if len(kinds) == 0 || slices.Contains(kinds, obj.GetKind()) {
					all = append(all, obj)
				}
			}
		}
	}
	return all, nil
}

// filesOf returns a file, or those of a folder that can hold objects.
func filesOf(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return []string{path}, err
	}
	entries, err := os.ReadDir(path)
	var files []string
	for _, e := range entries {
		if !e.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	return files, err
}

// readFile reads the documents of a file. What has no kind is no object.
func readFile(file string) ([]*unstructured.Unstructured, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(f, 4<<10); ; {
		obj := &unstructured.Unstructured{}
		switch err := decoder.Decode(&obj.Object); {
		case err == io.EOF:
			return all, nil
		case err != nil:
			return nil, err
		case obj.GetKind() != "" && obj.GetAPIVersion() != "":
			all = append(all, obj)
		}
	}
}

func encode(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
