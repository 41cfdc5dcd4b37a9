package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/request"
)

// NodeRestriction for requests of kubelets for the tokens and certificates of their pods.

// token checks a TokenRequest of a kubelet: the token must be for one of its pods.
func (p *nodeRestriction) token(ctx context.Context, node string, a *admission.Attributes) error {
	if a.Operation != admission.Create || a.Subresource != "token" {
		return nil
	}
	wanted, ok := a.Object.(*authenticationv1.TokenRequest)
	if !ok {
		return unexpected(a, a.Object)
	}
	ref := wanted.Spec.BoundObjectRef
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "" {
		return a.Forbidden(errors.New("node requested token not bound to a pod"))
	}
	if ref.UID == "" {
		return a.Forbidden(errors.New("node requested token with a pod binding without a uid"))
	}
	pod, err := p.existing(ctx, a, ref.Name)
	switch {
	case err != nil:
		return err
	case ref.UID != pod.UID:
		return a.Forbidden(fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID))
	case pod.Spec.NodeName != node:
		return a.Forbidden(errors.New("node requested token bound to a pod scheduled on a different node"))
	}
	if p.anyAudience {
		return nil
	}
	if err := p.audience(ctx, a, wanted, pod); err != nil {
		return a.Forbidden(err)
	}
	return nil
}

// audience checks that a pod uses tokens for the requested audience.
func (p *nodeRestriction) audience(ctx context.Context, a *admission.Attributes, wanted *authenticationv1.TokenRequest, pod *corev1.Pod) error {
	audience := ""
	switch len(wanted.Spec.Audiences) {
	case 0:
	case 1:
		audience = wanted.Spec.Audiences[0]
	default:
		return errors.New("node may only request 0 or 1 audiences")
	}
	uses, err := p.usesAudience(ctx, pod, audience)
	if err != nil {
		return fmt.Errorf("error validating audience %q: %w", audience, err)
	}
	if uses {
		return nil
	}
	allowed, err := p.otherwise(ctx, a, "request-serviceaccounts-token-audience", audience, a.Name)
	switch {
	case allowed:
		return nil
	case err != nil:
		return fmt.Errorf("error authorizing %s to request tokens for audience %q: %w", a.Request.User.Name, audience, err)
	}
	return fmt.Errorf("%s is not authorized to request tokens for audience %q", a.Request.User.Name, audience)
}

// otherwise asks the authorizer about a token that the pod does not use.
func (p *nodeRestriction) otherwise(ctx context.Context, a *admission.Attributes, verb, what, name string) (bool, error) {
	is := a.Served.GroupVersionResource()
	allowed, _, err := p.authorize(ctx, &a.Request.User, request.Info{
		IsResource: true, Verb: verb, Group: is.Group, Version: is.Version, Resource: what, Namespace: a.Namespace, Name: name,
	})
	return allowed, err
}

func (p *nodeRestriction) usesAudience(ctx context.Context, pod *corev1.Pod, audience string) (bool, error) {
	var errs []error
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Projected != nil {
			for j := range v.Projected.Sources {
				if t := v.Projected.Sources[j].ServiceAccountToken; t != nil && t.Audience == audience {
					return true, nil
				}
			}
		}
		driver, err := p.driver(ctx, pod, v)
		if err == nil && driver != "" {
			var d *storagev1.CSIDriver
			d, err = get[*storagev1.CSIDriver](ctx, p.objects, storageGroup, "csidrivers", "", driver)
			err = notListed(err, storageGroup, "csidriver", driver)
			if err == nil && slices.ContainsFunc(d.Spec.TokenRequests, func(r storagev1.TokenRequest) bool { return r.Audience == audience }) {
				return true, nil
			}
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return false, utilerrors.NewAggregate(errs)
}

// notListed gives an error the words of a client's cache, which names the kind in the singular.
func notListed(err error, group, singular, name string) error {
	if !apierrors.IsNotFound(err) {
		return err
	}
	return apierrors.NewNotFound(schema.GroupResource{Group: group, Resource: singular}, name)
}

// driver returns the CSI driver of a volume, "" if it has none.
func (p *nodeRestriction) driver(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (string, error) {
	claim := ""
	switch {
	case v.CSI != nil:
		return v.CSI.Driver, nil
	case v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil:
		claim = pod.Name + "-" + v.Name
	case v.PersistentVolumeClaim != nil:
		claim = v.PersistentVolumeClaim.ClaimName
	default:
		s := &v.VolumeSource
		return successor(s.AWSElasticBlockStore != nil, s.GCEPersistentDisk != nil, s.AzureDisk != nil, s.AzureFile != nil,
			s.Cinder != nil, s.VsphereVolume != nil, s.PortworxVolume != nil), nil
	}
	bound, err := get[*corev1.PersistentVolumeClaim](ctx, p.objects, "", "persistentvolumeclaims", pod.Namespace, claim)
	if err != nil {
		return "", notListed(err, "", "persistentvolumeclaim", claim)
	}
	volume, err := get[*corev1.PersistentVolume](ctx, p.objects, "", "persistentvolumes", "", bound.Spec.VolumeName)
	if err != nil {
		return "", notListed(err, "", "persistentvolume", bound.Spec.VolumeName)
	}
	s := &volume.Spec.PersistentVolumeSource
	if s.CSI != nil {
		return s.CSI.Driver, nil
	}
	return successor(s.AWSElasticBlockStore != nil, s.GCEPersistentDisk != nil, s.AzureDisk != nil, s.AzureFile != nil,
		s.Cinder != nil, s.VsphereVolume != nil, s.PortworxVolume != nil), nil
}

// successor returns the CSI driver that replaces an in-tree volume plugin.
func successor(aws, gce, azureDisk, azureFile, cinder, vsphere, portworx bool) string {
	switch {
	case aws:
		return "ebs.csi.aws.com"
	case gce:
		return "pd.csi.storage.gke.io"
	case azureDisk:
		return "disk.csi.azure.com"
	case azureFile:
		return "file.csi.azure.com"
	case cinder:
		return "cinder.csi.openstack.org"
	case vsphere:
		return "csi.vsphere.vmware.com"
	case portworx:
		return "pxd.portworx.com"
	}
	return ""
}

// podRequest has the fields of a PodCertificateRequest of any version.
type podRequest struct {
	node, pod, account, signer string
	nodeUID, podUID, accUID    types.UID
}

func podRequestOf(obj any) (podRequest, bool) {
	switch r := obj.(type) {
	case *certificatesv1beta1.PodCertificateRequest:
		s := &r.Spec
		return podRequest{string(s.NodeName), s.PodName, s.ServiceAccountName, s.SignerName, s.NodeUID, s.PodUID, s.ServiceAccountUID}, true
	case *certificatesv1.PodCertificateRequest:
		s := &r.Spec
		return podRequest{string(s.NodeName), s.PodName, s.ServiceAccountName, s.SignerName, s.NodeUID, s.PodUID, s.ServiceAccountUID}, true
	}
	return podRequest{}, false
}

// certificate checks a PodCertificateRequest of a kubelet: it must be for one of its pods.
func (p *nodeRestriction) certificate(ctx context.Context, node string, a *admission.Attributes) error {
	refuse := func(format string, args ...any) error { return a.Forbidden(fmt.Errorf(format, args...)) }
	if a.Operation != admission.Create {
		return refuse("unexpected operation %v", a.Operation)
	}
	if a.Subresource != "" {
		return refuse("unexpected subresource %v", a.Subresource)
	}
	r, ok := podRequestOf(a.Object)
	if !ok {
		return unexpected(a, a.Object)
	}
	if r.node != node {
		return refuse("PodCertificateRequest.Spec.NodeName=%q, which is not the requesting node %q", r.node, node)
	}
	// An object that is missing may only be late in the watch cache: not Forbidden, and not
	// NotFound either, which would be about the request.
	missing := func(kind, name string, err error) error {
		if apierrors.IsNotFound(err) {
			short := name[strings.LastIndex(name, "/")+1:]
			return fmt.Errorf("while retrieving %s %q named in the PodCertificateRequest: %s %q not found", kind, name, strings.ReplaceAll(kind, " ", ""), short)
		}
		return a.Forbidden(fmt.Errorf("while retrieving %s %q named in the PodCertificateRequest: %w", kind, name, err))
	}
	full := a.Namespace + "/" + r.pod
	n, err := get[*corev1.Node](ctx, p.objects, "", "nodes", "", r.node)
	if err != nil {
		return missing("node", r.node, err)
	}
	if n.UID != r.nodeUID {
		return fmt.Errorf("PodCertificateRequest for pod %q names node UID %q, inconsistent with the running node (%q)", full, r.nodeUID, n.UID)
	}
	pod, err := get[*corev1.Pod](ctx, p.objects, "", "pods", a.Namespace, r.pod)
	switch {
	case err != nil:
		return missing("pod", full, err)
	case r.podUID != pod.UID:
		return fmt.Errorf("PodCertificateRequest for pod %q contains pod UID (%q) which differs from running pod %q", full, r.podUID, pod.UID)
	case pod.Spec.NodeName != r.node:
		return refuse("pod %q is not running on node %q named in the PodCertificateRequest", full, r.node)
	case isMirror(pod):
		return refuse("pod %q is a mirror pod", full)
	case r.account != pod.Spec.ServiceAccountName:
		return refuse("PodCertificateRequest for pod %q contains serviceAccountName (%q) that differs from running pod (%q)", full, r.account, pod.Spec.ServiceAccountName)
	}
	account, err := get[*corev1.ServiceAccount](ctx, p.objects, "", "serviceaccounts", a.Namespace, r.account)
	if err != nil {
		return missing("service account", a.Namespace+"/"+r.account, err)
	}
	if r.accUID != account.UID {
		return fmt.Errorf("PodCertificateRequest for pod %q names service account UID %q, which differs from the running service account (%q)", full, r.accUID, account.UID)
	}
	if usesSigner(pod, r.signer) {
		return nil
	}
	allowed, err := p.otherwise(ctx, a, "request-serviceaccounts-podcertificate-signer", strings.ReplaceAll(r.signer, "/", ":"), r.account)
	switch {
	case allowed:
		return nil
	case err != nil:
		return refuse("error authorizing %s to request podcertificaterequests for signer %q: %w", a.Request.User.Name, r.signer, err)
	}
	return refuse("pod %q does not mount a podCertificate projected volume for signer %q", full, r.signer)
}

func usesSigner(pod *corev1.Pod, signer string) bool {
	for i := range pod.Spec.Volumes {
		if v := pod.Spec.Volumes[i].Projected; v != nil {
			for j := range v.Sources {
				if c := v.Sources[j].PodCertificate; c != nil && c.SignerName == signer {
					return true
				}
			}
		}
	}
	return false
}
