package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/internal/problems"
)

// alwaysPull is AlwaysPullImages: it sets imagePullPolicy to Always, so that pods cannot use
// images that were pulled with the credentials of others.
type alwaysPull struct{ base }

func newAlwaysPull(*builder) admission.Plugin {
	return alwaysPull{base{"AlwaysPullImages", on("", "pods", admission.Create, admission.Update)}}
}

// applies reports whether a write sets a new image.
func (alwaysPull) applies(a *admission.Attributes, pod *corev1.Pod) bool {
	old, ok := a.Old.(*corev1.Pod)
	if !ok {
		return true
	}
	known := map[string]bool{}
	for c := range podspec.Containers(&old.Spec) {
		known[c.Image] = true
	}
	fresh := false
	for c := range podspec.Containers(&pod.Spec) {
		fresh = fresh || !known[c.Image]
	}
	return fresh
}

// Admit implements admission.Mutator.
func (p alwaysPull) Admit(_ context.Context, a *admission.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || !p.applies(a, pod) {
		return nil
	}
	for c := range podspec.Containers(&pod.Spec) {
		c.ImagePullPolicy = corev1.PullAlways
	}
	for i := range pod.Spec.Volumes {
		if image := pod.Spec.Volumes[i].Image; image != nil {
			image.PullPolicy = corev1.PullAlways
		}
	}
	return nil
}

// Validate implements admission.Validator.
func (p alwaysPull) Validate(_ context.Context, a *admission.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || !p.applies(a, pod) {
		return nil
	}
	var errs []error
	check := func(policy corev1.PullPolicy, path *field.Path) {
		if policy != corev1.PullAlways {
			errs = append(errs, a.Forbidden(field.NotSupported(path, policy, []string{string(corev1.PullAlways)})))
		}
	}
	spec := field.NewPath("spec")
	podspec.EachContainer(&pod.Spec, spec, func(c *corev1.Container, at podspec.Place) {
		check(c.ImagePullPolicy, at.Path().Child("imagePullPolicy"))
	})
	for i := range pod.Spec.Volumes {
		if image := pod.Spec.Volumes[i].Image; image != nil {
			check(image.PullPolicy, spec.Child("volumes").Index(i).Child("image", "pullPolicy"))
		}
	}
	return problems.Join(errs)
}

// antiAffinity is LimitPodHardAntiAffinityTopology: required anti-affinity may only use the
// topology key hostname.
type antiAffinity struct{ base }

func newAntiAffinity(*builder) admission.Plugin {
	return antiAffinity{base{"LimitPodHardAntiAffinityTopology", on("", "pods", admission.Create, admission.Update)}}
}

// Validate implements admission.Validator.
func (antiAffinity) Validate(_ context.Context, a *admission.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	for _, term := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		if term.TopologyKey != corev1.LabelHostname {
			return apierrors.NewForbidden(a.GroupResource(), pod.Name, fmt.Errorf(
				"affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey %v but only key %v is allowed", term.TopologyKey, corev1.LabelHostname))
		}
	}
	return nil
}

// podNodeSelector is PodNodeSelector: it adds the node selector of the namespace to pods.
type podNodeSelector struct {
	base
	objects admission.Objects
	// selectors by namespace, and the default for namespaces without one.
	selectors map[string]string
}

const (
	namespaceSelector = "scheduler.alpha.kubernetes.io/node-selector"
	clusterSelector   = "clusterDefaultNodeSelector"
)

func newPodNodeSelector(b *builder) (admission.Plugin, error) {
	p := &podNodeSelector{base: base{"PodNodeSelector", on("", "pods", admission.Create)}, objects: b.Objects}
	if b.configuration != nil {
		var file struct {
			PodNodeSelectorPluginConfig map[string]string
		}
		// The key may begin with a small or a capital letter.
		err := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(b.configuration), 4096).Decode(&file)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		p.selectors = file.PodNodeSelectorPluginConfig
	}
	return p, nil
}

// Admit implements admission.Mutator.
func (p *podNodeSelector) Admit(ctx context.Context, a *admission.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok {
		return nil
	}
	selector, err := p.selector(ctx, a, pod)
	if err != nil {
		return err
	}
	pod.Spec.NodeSelector = labels.Merge(selector, pod.Spec.NodeSelector)
	return p.allowed(a, pod)
}

// Validate implements admission.Validator.
func (p *podNodeSelector) Validate(ctx context.Context, a *admission.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok {
		return nil
	}
	if _, err := p.selector(ctx, a, pod); err != nil {
		return err
	}
	return p.allowed(a, pod)
}

// selector returns the node selector of the namespace, or an error if the pod's conflicts.
func (p *podNodeSelector) selector(ctx context.Context, a *admission.Attributes, pod *corev1.Pod) (labels.Set, error) {
	ns, err := namespace(ctx, p.objects, a.Namespace)
	if apierrors.IsNotFound(err) {
		return nil, apierrors.NewInternalError(fmt.Errorf("namespace %s does not exist", a.Namespace))
	}
	if err != nil {
		return nil, err
	}
	text, ok := ns.Annotations[namespaceSelector]
	if !ok {
		text = p.selectors[clusterSelector]
	}
	selector, err := labels.ConvertSelectorToLabelsMap(text)
	if err == nil && labels.Conflicts(selector, pod.Spec.NodeSelector) {
		err = apierrors.NewForbidden(a.GroupResource(), pod.Name, errors.New("pod node label selector conflicts with its namespace node label selector"))
	}
	return selector, err
}

// allowed checks the node selector of a pod against the whitelist of its namespace.
func (p *podNodeSelector) allowed(a *admission.Attributes, pod *corev1.Pod) error {
	allowed, err := labels.ConvertSelectorToLabelsMap(p.selectors[a.Namespace])
	if err != nil || len(allowed) == 0 {
		return err
	}
	for key, value := range pod.Spec.NodeSelector {
		if v, ok := allowed[key]; !ok || v != value {
			return apierrors.NewForbidden(a.GroupResource(), pod.Name, errors.New("pod node label selector labels conflict with its namespace whitelist"))
		}
	}
	return nil
}

// askable returns the error of a client for a name that is not a valid path segment.
func askable(name string) error {
	if name == "" {
		return errors.New("resource name may not be empty")
	}
	if wrong := content.IsPathSegmentName(name); len(wrong) > 0 {
		return fmt.Errorf("invalid resource name %q: %v", name, wrong)
	}
	return nil
}

// runtimeClass is RuntimeClass: it applies overhead and scheduling of the RuntimeClass.
type runtimeClass struct {
	base
	objects admission.Objects
}

func newRuntimeClass(b *builder) admission.Plugin {
	return &runtimeClass{base{"RuntimeClass", on("", "pods", admission.Create)}, b.Objects}
}

// class returns the RuntimeClass of a pod, nil if it has none.
func (r *runtimeClass) class(ctx context.Context, a *admission.Attributes) (*corev1.Pod, *nodev1.RuntimeClass, error) {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || pod.Spec.RuntimeClassName == nil {
		return pod, nil, nil
	}
	if err := askable(*pod.Spec.RuntimeClassName); err != nil {
		return nil, nil, err
	}
	class, err := newest[*nodev1.RuntimeClass](ctx, r.objects, "node.k8s.io", "runtimeclasses", "", *pod.Spec.RuntimeClassName)
	if apierrors.IsNotFound(err) {
		err = a.Forbidden(fmt.Errorf("pod rejected: RuntimeClass %q not found", *pod.Spec.RuntimeClassName))
	}
	return pod, class, err
}

func errOverhead(a *admission.Attributes) error {
	return a.Forbidden(errors.New("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"))
}

// Admit implements admission.Mutator.
func (r *runtimeClass) Admit(ctx context.Context, a *admission.Attributes) error {
	pod, class, err := r.class(ctx, a)
	if err != nil || class == nil {
		return err
	}
	if overhead := class.Overhead; overhead != nil {
		if len(pod.Spec.Overhead) > 0 && !equality.Semantic.DeepEqual(overhead.PodFixed, pod.Spec.Overhead) {
			return errOverhead(a)
		}
		pod.Spec.Overhead = overhead.PodFixed.DeepCopy()
	}
	scheduling := class.Scheduling
	if scheduling == nil {
		return nil
	}
	for key, value := range scheduling.NodeSelector {
		if own, ok := pod.Spec.NodeSelector[key]; ok && own != value {
			return a.Forbidden(fmt.Errorf("conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s", key, value, key, own))
		}
	}
	if len(scheduling.NodeSelector) > 0 {
		pod.Spec.NodeSelector = labels.Merge(pod.Spec.NodeSelector, scheduling.NodeSelector)
	}
	pod.Spec.Tolerations = mergeTolerations(pod.Spec.Tolerations, scheduling.Tolerations)
	return nil
}

// Validate implements admission.Validator.
func (r *runtimeClass) Validate(ctx context.Context, a *admission.Attributes) error {
	pod, class, err := r.class(ctx, a)
	switch {
	case err != nil || pod == nil:
		return err
	case class != nil && class.Overhead != nil:
		if !equality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
			return errOverhead(a)
		}
	case pod.Spec.Overhead != nil:
		return a.Forbidden(errors.New("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"))
	}
	return nil
}
