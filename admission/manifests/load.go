package manifests

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	registrationv1alpha1 "k8s.io/api/admissionregistration/v1alpha1"
	registrationv1beta1 "k8s.io/api/admissionregistration/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/resource"
)

// manifestFiles returns the names of the manifests in a directory, sorted.
func manifestFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("failed to read manifest directory %q: %w", dir, err)
	}
	var names []string
	for _, e := range entries {
		switch strings.ToLower(filepath.Ext(e.Name())) {
		case ".yaml", ".yml", ".json":
			if !e.IsDir() {
				names = append(names, e.Name())
			}
		}
	}
	return names, nil
}

// loading is the state of reading all manifests once.
type loading struct {
	kinds   map[string]*resource.Definition
	decoder runtime.Decoder
	file    string
	// names are the objects seen, by kind and name, with their files.
	names   map[string]map[string]string
	objects []resource.Object
}

// load reads the manifests. The hash is "" if there are none.
func (d *Directory) load() (set *admission.Manifests, hash string, _ error) {
	names, err := manifestFiles(d.cfg.Path)
	if err != nil {
		return nil, "", err
	}
	l := &loading{kinds: d.cfg.Kinds, decoder: newDecoder(), names: map[string]map[string]string{}}
	sum, empty := sha256.New(), true
	for _, name := range names {
		l.file = filepath.Join(d.cfg.Path, name)
		data, err := os.ReadFile(l.file)
		if err != nil {
			return nil, "", fmt.Errorf("failed to read file %q: %w", l.file, err)
		}
		if len(data) == 0 {
			continue
		}
		sum.Write(data)
		sum.Write([]byte{0})
		empty = false
		if err := l.documents(data); err != nil {
			return nil, "", err
		}
	}
	if err := l.checkReferences(); err != nil {
		return nil, "", err
	}
	slices.SortStableFunc(l.objects, func(a, b resource.Object) int { return strings.Compare(a.GetName(), b.GetName()) })
	if !empty {
		hash = fmt.Sprintf("sha256:%x", sum.Sum(nil))
	}
	return &admission.Manifests{Objects: l.objects}, hash, nil
}

// newDecoder returns a decoder for the kinds of manifests, and for some other kinds so that
// the error can name them.
func newDecoder() runtime.Decoder {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{registrationv1.AddToScheme, registrationv1beta1.AddToScheme, registrationv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // cannot fail for these types
		}
	}
	scheme.AddUnversionedTypes(metav1.Unversioned, &metav1.List{}, &metav1.Status{})
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}

func (l *loading) documents(data []byte) error {
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("failed to split YAML documents in file %q: %w", l.file, err)
		}
		if doc = bytes.TrimSpace(doc); len(doc) == 0 {
			continue
		}
		if err := l.document(doc); err != nil {
			return fmt.Errorf("error loading %s: %w", l.file, err)
		}
	}
}

func (l *loading) document(text []byte) error {
	obj, kind, err := l.decoder.Decode(text, nil, nil)
	if err != nil {
		return err
	}
	if list, ok := obj.(*metav1.List); ok {
		for _, item := range list.Items {
			if _, _, err := l.decoder.Decode(item.Raw, nil, nil); err != nil {
				return fmt.Errorf("failed to decode list item: %w", err)
			}
			if err := l.document(item.Raw); err != nil {
				return err
			}
		}
		return nil
	}
	name := kind.Kind
	if meta.IsListType(obj) {
		name = strings.TrimSuffix(name, "List")
	}
	def := l.kinds[name]
	if def == nil || kind.GroupVersion() != registrationv1.SchemeGroupVersion {
		return fmt.Errorf("unsupported resource type %T", obj)
	}
	if !meta.IsListType(obj) {
		return l.accept(def, obj.(resource.Object))
	}
	return meta.EachListItem(obj, func(item runtime.Object) error { return l.accept(def, item.(resource.Object)) })
}

// accept validates an object as a create request would be, and by the rules of static
// manifests.
func (l *loading) accept(def *resource.Definition, obj resource.Object) error {
	if v := def.HubVersion(); v.Default != nil {
		v.Default(obj)
	}
	errs := validation.ValidateObjectMetaAccessor(obj, false, validation.NameIsDNSSubdomain, field.NewPath("metadata"))
	if errs = append(errs, def.Strategy.Validate(context.Background(), obj)...); len(errs) > 0 {
		return fmt.Errorf("%s %q: %w", def.Kind, obj.GetName(), errs.ToAggregate())
	}
	name := obj.GetName()
	if l.names[def.Kind] == nil {
		l.names[def.Kind] = map[string]string{}
	}
	switch before, twice := l.names[def.Kind][name]; {
	case name == "":
		return fmt.Errorf("resource in file %q must have a name", l.file)
	case !strings.HasSuffix(name, Suffix):
		return fmt.Errorf("%q in file %q must have a name ending with %q", name, l.file, Suffix)
	case twice:
		return fmt.Errorf("duplicate name %q found in file %q (previously seen in %q)", name, l.file, before)
	}
	l.names[def.Kind][name] = l.file
	l.objects = append(l.objects, obj)
	return l.checkStandalone(def.Kind, obj)
}

// checkStandalone checks that an object does not refer to API objects: no params, no services.
func (l *loading) checkStandalone(kind string, obj resource.Object) error {
	params := func(k *registrationv1.ParamKind) error {
		if k != nil {
			return fmt.Errorf("%s %q: spec.paramKind is not supported for static manifests", kind, obj.GetName())
		}
		return nil
	}
	switch o := obj.(type) {
	case *registrationv1.ValidatingAdmissionPolicy:
		return params(o.Spec.ParamKind)
	case *registrationv1.MutatingAdmissionPolicy:
		return params(o.Spec.ParamKind)
	case *registrationv1.ValidatingWebhookConfiguration:
		for i := range o.Webhooks {
			if err := l.checkClient(obj, o.Webhooks[i].Name, &o.Webhooks[i].ClientConfig); err != nil {
				return err
			}
		}
	case *registrationv1.MutatingWebhookConfiguration:
		for i := range o.Webhooks {
			if err := l.checkClient(obj, o.Webhooks[i].Name, &o.Webhooks[i].ClientConfig); err != nil {
				return err
			}
		}
	}
	policy, refers, ok := boundPolicy(obj)
	switch {
	case !ok:
		return nil
	case policy == "":
		return fmt.Errorf("binding %q must reference a policy (spec.policyName)", obj.GetName())
	case !strings.HasSuffix(policy, Suffix):
		return fmt.Errorf("binding %q: spec.policyName %q must end with %q", obj.GetName(), policy, Suffix)
	case refers:
		return fmt.Errorf("binding %q: spec.paramRef is not supported for static manifests", obj.GetName())
	}
	return nil
}

// checkClient checks that a webhook is configured by URL.
func (l *loading) checkClient(config resource.Object, name string, c *registrationv1.WebhookClientConfig) error {
	switch {
	case c.Service != nil:
		return fmt.Errorf("webhook %q in %q (file %q): clientConfig.service is not supported for static manifests; use clientConfig.url instead", name, config.GetName(), l.file)
	case c.URL == nil || *c.URL == "":
		return fmt.Errorf("webhook %q in %q (file %q): clientConfig.url is required for static manifests", name, config.GetName(), l.file)
	}
	return nil
}

// boundPolicy returns the policy of a binding, and whether it has a paramRef.
func boundPolicy(obj resource.Object) (policy string, params, ok bool) {
	switch b := obj.(type) {
	case *registrationv1.ValidatingAdmissionPolicyBinding:
		return b.Spec.PolicyName, b.Spec.ParamRef != nil, true
	case *registrationv1.MutatingAdmissionPolicyBinding:
		return b.Spec.PolicyName, b.Spec.ParamRef != nil, true
	}
	return "", false, false
}

// checkReferences checks that the policies of all bindings are in manifests too.
func (l *loading) checkReferences() error {
	for _, obj := range l.objects {
		policy, _, ok := boundPolicy(obj)
		if !ok {
			continue
		}
		if l.names["ValidatingAdmissionPolicy"][policy] == "" && l.names["MutatingAdmissionPolicy"][policy] == "" {
			return fmt.Errorf("binding %q references policy %q which does not exist in the manifest directory", obj.GetName(), policy)
		}
	}
	return nil
}
