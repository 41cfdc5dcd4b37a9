package podspec

import (
	"path"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
)

// DefaultPersistentVolume sets the defaults of a persistent volume.
func DefaultPersistentVolume(pv *corev1.PersistentVolume) {
	rules.Default(&pv.Status.Phase, corev1.VolumePending)
	rules.Default(&pv.Spec.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
	rules.DefaultPointer(&pv.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	rules.RoundUp(pv.Spec.Capacity)
	if s := pv.Spec.HostPath; s != nil {
		rules.DefaultPointer(&s.Type, corev1.HostPathUnset)
	}
	if s := pv.Spec.RBD; s != nil {
		rules.Default(&s.RBDPool, "rbd")
		rules.Default(&s.RadosUser, "admin")
		rules.Default(&s.Keyring, "/etc/ceph/keyring")
	}
	if s := pv.Spec.ISCSI; s != nil {
		rules.Default(&s.ISCSIInterface, "default")
	}
	if s := pv.Spec.AzureDisk; s != nil {
		rules.DefaultPointer(&s.CachingMode, corev1.AzureDataDiskCachingReadWrite)
		rules.DefaultPointer(&s.FSType, "ext4")
		rules.DefaultPointer(&s.ReadOnly, false)
		rules.DefaultPointer(&s.Kind, corev1.AzureSharedBlobDisk)
	}
	if s := pv.Spec.ScaleIO; s != nil {
		rules.Default(&s.StorageMode, "ThinProvisioned")
		rules.Default(&s.FSType, "xfs")
	}
}

// DefaultInlineVolume sets the defaults of a persistent volume spec that is part
// of another object.
func DefaultInlineVolume(spec *corev1.PersistentVolumeSpec) {
	pv := corev1.PersistentVolume{Spec: *spec}
	DefaultPersistentVolume(&pv)
	pv.Spec.PersistentVolumeReclaimPolicy, pv.Spec.VolumeMode = spec.PersistentVolumeReclaimPolicy, spec.VolumeMode
	*spec = pv.Spec
}

// ValidateInlineVolume validates a persistent volume spec that is part of another
// object. It must be of a CSI driver and cannot be claimed.
func ValidateInlineVolume(spec *corev1.PersistentVolumeSpec, p *field.Path) field.ErrorList {
	var e rules.Errors
	const inline = " in the context of inline volumes"
	forbid := func(name string, set bool) {
		if set {
			e.Forbidden(p.Child(name), "may not be specified"+inline)
		}
	}
	forbid("claimRef", spec.ClaimRef != nil)
	forbid("capacity", len(spec.Capacity) > 0)
	if spec.CSI == nil {
		e.Required(p.Child("csi"), "has to be specified"+inline)
	}
	CheckAccessModes(&e, spec.AccessModes, "", p.Child("accessModes"))
	if policy := spec.PersistentVolumeReclaimPolicy; policy != "" && policy != corev1.PersistentVolumeReclaimRetain {
		e.Forbidden(p.Child("persistentVolumeReclaimPolicy"), "may only be "+string(corev1.PersistentVolumeReclaimRetain)+inline)
	}
	forbid("nodeAffinity", spec.NodeAffinity != nil)
	CheckPersistentVolumeSource(&e, &corev1.PersistentVolume{Spec: *spec}, p)
	forbid("storageClassName", spec.StorageClassName != "")
	if mode := spec.VolumeMode; mode != nil && *mode != corev1.PersistentVolumeFilesystem {
		e.Forbidden(p.Child("volumeMode"), "may not specify volumeMode other than "+string(corev1.PersistentVolumeFilesystem)+inline)
	}
	return field.ErrorList(e)
}

// CheckAccessModes validates the access modes of a volume or a claim; missing is
// the message if there are none.
func CheckAccessModes(e *rules.Errors, modes []corev1.PersistentVolumeAccessMode, missing string, p *field.Path) {
	if len(modes) == 0 {
		e.Required(p, missing)
	}
	alone, others := false, false
	for _, mode := range modes {
		switch mode {
		case corev1.ReadWriteOncePod:
			alone = true
		case corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce:
			others = true
		default:
			rules.OneOf(e, p, mode, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod)
		}
	}
	if alone && others {
		e.Forbidden(p, "may not use ReadWriteOncePod with other access modes")
	}
}

// CheckPersistentVolumeSource validates the source of a persistent volume; there
// must be exactly one. Some field names in the messages differ from those in the
// API, as in Kubernetes.
func CheckPersistentVolumeSource(e *rules.Errors, pv *corev1.PersistentVolume, p *field.Path) {
	v, found := &pv.Spec.PersistentVolumeSource, false
	first := func(name string) bool {
		if found {
			e.Forbidden(p.Child(name), oneVolumeType)
			return false
		}
		found = true
		return true
	}
	if s := v.HostPath; s != nil && first("hostPath") {
		checkHostPath(e, s, p.Child("hostPath"))
	}
	if s := v.GCEPersistentDisk; s != nil && first("gcePersistentDisk") {
		e.NotEmpty(p.Child("persistentDisk", "pdName"), s.PDName)
		checkPartition(e, s.Partition, p.Child("persistentDisk", "partition"))
	}
	if s := v.AWSElasticBlockStore; s != nil && first("awsElasticBlockStore") {
		e.NotEmpty(p.Child("awsElasticBlockStore", "volumeID"), s.VolumeID)
		checkPartition(e, s.Partition, p.Child("awsElasticBlockStore", "partition"))
	}
	if s := v.Glusterfs; s != nil && first("glusterfs") {
		sp := p.Child("glusterfs")
		e.NotEmpty(sp.Child("endpoints"), s.EndpointsName)
		e.NotEmpty(sp.Child("path"), s.Path)
		if ns := s.EndpointsNamespace; ns != nil && *ns == "" {
			e.Invalid(sp.Child("endpointsNamespace"), *ns, "if the endpointnamespace is set, it must be a valid namespace name")
		} else if ns != nil {
			e.InvalidEach(sp.Child("endpointsNamespace"), *ns, apivalidation.ValidateNamespaceName(*ns, false))
		}
	}
	if s := v.Flocker; s != nil && first("flocker") {
		checkFlocker(e, s, p.Child("flocker"))
	}
	if s := v.NFS; s != nil && first("nfs") {
		e.NotEmpty(p.Child("nfs", "server"), s.Server)
		e.NotEmpty(p.Child("nfs", "path"), s.Path)
		if !path.IsAbs(s.Path) {
			e.Invalid(p.Child("nfs", "path"), s.Path, "must be an absolute path")
		}
	}
	if s := v.RBD; s != nil && first("rbd") {
		checkMonitors(e, s.CephMonitors, p.Child("rbd"))
		e.NotEmpty(p.Child("rbd", "image"), s.RBDImage)
	}
	if s := v.Quobyte; s != nil && first("quobyte") {
		checkQuobyte(e, s, p.Child("quobyte"))
	}
	if s := v.CephFS; s != nil && first("cephFS") {
		checkMonitors(e, s.Monitors, p.Child("cephfs"))
	}
	if s := v.ISCSI; s != nil && first("iscsi") {
		checkPersistentISCSI(e, s, pv.Name, p.Child("iscsi"))
	}
	if s := v.Cinder; s != nil && first("cinder") {
		e.NotEmpty(p.Child("cinder", "volumeID"), s.VolumeID)
		if ref := s.SecretRef; ref != nil {
			e.NotEmpty(p.Child("cinder", "secretRef", "name"), ref.Name)
			e.NotEmpty(p.Child("cinder", "secretRef", "namespace"), ref.Namespace)
		}
	}
	if s := v.FC; s != nil && first("fc") {
		checkFC(e, s, p.Child("fc"))
	}
	// FlexVolume is accepted beside another source, as in Kubernetes.
	if s := v.FlexVolume; s != nil {
		found = true
		checkFlexVolume(e, &corev1.FlexVolumeSource{Driver: s.Driver, Options: s.Options}, p.Child("flexVolume"))
	}
	if s := v.AzureFile; s != nil && first("azureFile") {
		e.NotEmpty(p.Child("azureFile", "secretName"), s.SecretName)
		e.NotEmpty(p.Child("azureFile", "shareName"), s.ShareName)
		if s.SecretNamespace != nil {
			e.NotEmpty(p.Child("azureFile", "secretNamespace"), *s.SecretNamespace)
		}
	}
	if s := v.VsphereVolume; s != nil && first("vsphereVolume") {
		e.NotEmpty(p.Child("vsphereVolume", "volumePath"), s.VolumePath)
	}
	if s := v.PhotonPersistentDisk; s != nil && first("photonPersistentDisk") {
		e.NotEmpty(p.Child("photonPersistentDisk", "pdID"), s.PdID)
	}
	if s := v.PortworxVolume; s != nil && first("portworxVolume") {
		e.NotEmpty(p.Child("portworxVolume", "volumeID"), s.VolumeID)
	}
	if s := v.AzureDisk; s != nil && first("azureDisk") {
		checkAzureDisk(e, s, p.Child("azureDisk"))
	}
	if s := v.ScaleIO; s != nil && first("scaleIO") {
		e.NotEmpty(p.Child("scaleIO", "gateway"), s.Gateway)
		e.NotEmpty(p.Child("scaleIO", "system"), s.System)
		e.NotEmpty(p.Child("scaleIO", "volumeName"), s.VolumeName)
	}
	if s := v.Local; s != nil && first("local") {
		if e.NotEmpty(p.Child("local", "path"), s.Path) {
			checkNoBacksteps(e, s.Path, p.Child("local", "path"))
		}
		if pv.Spec.NodeAffinity == nil {
			e.Required(p.Child("nodeAffinity"), "Local volume requires node affinity")
		}
	}
	if s := v.StorageOS; s != nil && first("storageos") {
		sp := p.Child("storageos")
		if e.NotEmpty(sp.Child("volumeName"), s.VolumeName) {
			e.DNSLabel(sp.Child("volumeName"), s.VolumeName)
		}
		if s.VolumeNamespace != "" {
			e.DNSLabel(sp.Child("volumeNamespace"), s.VolumeNamespace)
		}
		if ref := s.SecretRef; ref != nil {
			e.NotEmpty(sp.Child("secretRef", "name"), ref.Name)
			e.NotEmpty(sp.Child("secretRef", "namespace"), ref.Namespace)
		}
	}
	if s := v.CSI; s != nil && first("csi") {
		sp := p.Child("csi")
		checkCSI(e, &corev1.CSIVolumeSource{Driver: s.Driver}, sp)
		e.NotEmpty(sp.Child("volumeHandle"), s.VolumeHandle)
		checkPersistentSecret(e, s.ControllerPublishSecretRef, sp.Child("controllerPublishSecretRef"))
		checkPersistentSecret(e, s.ControllerExpandSecretRef, sp.Child("controllerExpandSecretRef"))
		checkPersistentSecret(e, s.NodePublishSecretRef, sp.Child("nodePublishSecretRef"))
		checkPersistentSecret(e, s.NodeExpandSecretRef, sp.Child("nodeExpandSecretRef"))
	}
	if !found {
		e.Required(p, "must specify a volume type")
	}
}

func checkPersistentSecret(e *rules.Errors, ref *corev1.SecretReference, p *field.Path) {
	if ref == nil {
		return
	}
	if e.NotEmpty(p.Child("name"), ref.Name) {
		e.DNSSubdomain(p.Child("name"), ref.Name)
	}
	if e.NotEmpty(p.Child("namespace"), ref.Namespace) {
		e.DNSLabel(p.Child("namespace"), ref.Namespace)
	}
}

func checkPersistentISCSI(e *rules.Errors, s *corev1.ISCSIPersistentVolumeSource, volume string, p *field.Path) {
	name := func(p *field.Path, name string) {
		if form := iscsiNames()[name[:min(3, len(name))]]; form == nil || !form.MatchString(name) {
			e.Invalid(p, name, "must be valid format")
		}
	}
	e.NotEmpty(p.Child("targetPortal"), s.TargetPortal)
	if s.InitiatorName != nil && len(volume+":"+s.TargetPortal) > 64 {
		e.Invalid(p.Child("targetportal"), s.TargetPortal,
			"Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.")
	}
	if e.NotEmpty(p.Child("iqn"), s.IQN) {
		name(p.Child("iqn"), s.IQN)
	}
	if s.Lun < 0 || s.Lun > 255 {
		e.Invalid(p.Child("lun"), s.Lun, validation.InclusiveRangeError(0, 255))
	}
	if (s.DiscoveryCHAPAuth || s.SessionCHAPAuth) && s.SecretRef == nil {
		e.Required(p.Child("secretRef"), "")
	}
	if s.SecretRef != nil {
		e.NotEmpty(p.Child("secretRef", "name"), s.SecretRef.Name)
	}
	if s.InitiatorName != nil {
		name(p.Child("initiatorname"), *s.InitiatorName)
	}
}
