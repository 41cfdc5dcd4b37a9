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
			e.Forbidden(childOf(p, name), "may not be specified"+inline)
		}
	}
	forbid("claimRef", spec.ClaimRef != nil)
	forbid("capacity", len(spec.Capacity) > 0)
	if spec.CSI == nil {
		e.Required(childOf(p, "csi"), "has to be specified"+inline)
	}
	CheckAccessModes(&e, spec.AccessModes, "", childOf(p, "accessModes"))
	if policy := spec.PersistentVolumeReclaimPolicy; policy != "" && policy != corev1.PersistentVolumeReclaimRetain {
		e.Forbidden(childOf(p, "persistentVolumeReclaimPolicy"), "may only be "+string(corev1.PersistentVolumeReclaimRetain)+inline)
	}
	forbid("nodeAffinity", spec.NodeAffinity != nil)
	CheckPersistentVolumeSource(&e, &corev1.PersistentVolume{Spec: *spec}, p)
	forbid("storageClassName", spec.StorageClassName != "")
	if mode := spec.VolumeMode; mode != nil && *mode != corev1.PersistentVolumeFilesystem {
		e.Forbidden(childOf(p, "volumeMode"), "may not specify volumeMode other than "+string(corev1.PersistentVolumeFilesystem)+inline)
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
			e.Forbidden(childOf(p, name), oneVolumeType)
			return false
		}
		found = true
		return true
	}
	if s := v.HostPath; s != nil && first("hostPath") {
		checkHostPath(e, s, childOf(p, "hostPath"))
	}
	if s := v.GCEPersistentDisk; s != nil && first("gcePersistentDisk") {
		e.NotEmpty(childOf(p, "persistentDisk", "pdName"), s.PDName)
		checkPartition(e, s.Partition, childOf(p, "persistentDisk", "partition"))
	}
	if s := v.AWSElasticBlockStore; s != nil && first("awsElasticBlockStore") {
		e.NotEmpty(childOf(p, "awsElasticBlockStore", "volumeID"), s.VolumeID)
		checkPartition(e, s.Partition, childOf(p, "awsElasticBlockStore", "partition"))
	}
	if s := v.Glusterfs; s != nil && first("glusterfs") {
		sp := childOf(p, "glusterfs")
		e.NotEmpty(childOf(sp, "endpoints"), s.EndpointsName)
		e.NotEmpty(childOf(sp, "path"), s.Path)
		if ns := s.EndpointsNamespace; ns != nil && *ns == "" {
			e.Invalid(childOf(sp, "endpointsNamespace"), *ns, "if the endpointnamespace is set, it must be a valid namespace name")
		} else if ns != nil {
			e.InvalidEach(childOf(sp, "endpointsNamespace"), *ns, apivalidation.ValidateNamespaceName(*ns, false))
		}
	}
	if s := v.Flocker; s != nil && first("flocker") {
		checkFlocker(e, s, childOf(p, "flocker"))
	}
	if s := v.NFS; s != nil && first("nfs") {
		e.NotEmpty(childOf(p, "nfs", "server"), s.Server)
		e.NotEmpty(childOf(p, "nfs", "path"), s.Path)
		if !path.IsAbs(s.Path) {
			e.Invalid(childOf(p, "nfs", "path"), s.Path, "must be an absolute path")
		}
	}
	if s := v.RBD; s != nil && first("rbd") {
		checkMonitors(e, s.CephMonitors, childOf(p, "rbd"))
		e.NotEmpty(childOf(p, "rbd", "image"), s.RBDImage)
	}
	if s := v.Quobyte; s != nil && first("quobyte") {
		checkQuobyte(e, s, childOf(p, "quobyte"))
	}
	if s := v.CephFS; s != nil && first("cephFS") {
		checkMonitors(e, s.Monitors, childOf(p, "cephfs"))
	}
	if s := v.ISCSI; s != nil && first("iscsi") {
		checkPersistentISCSI(e, s, pv.Name, childOf(p, "iscsi"))
	}
	if s := v.Cinder; s != nil && first("cinder") {
		e.NotEmpty(childOf(p, "cinder", "volumeID"), s.VolumeID)
		if ref := s.SecretRef; ref != nil {
			e.NotEmpty(childOf(p, "cinder", "secretRef", "name"), ref.Name)
			e.NotEmpty(childOf(p, "cinder", "secretRef", "namespace"), ref.Namespace)
		}
	}
	if s := v.FC; s != nil && first("fc") {
		checkFC(e, s, childOf(p, "fc"))
	}
	// FlexVolume is accepted beside another source, as in Kubernetes.
	if s := v.FlexVolume; s != nil {
		found = true
		checkFlexVolume(e, &corev1.FlexVolumeSource{Driver: s.Driver, Options: s.Options}, childOf(p, "flexVolume"))
	}
	if s := v.AzureFile; s != nil && first("azureFile") {
		e.NotEmpty(childOf(p, "azureFile", "secretName"), s.SecretName)
		e.NotEmpty(childOf(p, "azureFile", "shareName"), s.ShareName)
		if s.SecretNamespace != nil {
			e.NotEmpty(childOf(p, "azureFile", "secretNamespace"), *s.SecretNamespace)
		}
	}
	if s := v.VsphereVolume; s != nil && first("vsphereVolume") {
		e.NotEmpty(childOf(p, "vsphereVolume", "volumePath"), s.VolumePath)
	}
	if s := v.PhotonPersistentDisk; s != nil && first("photonPersistentDisk") {
		e.NotEmpty(childOf(p, "photonPersistentDisk", "pdID"), s.PdID)
	}
	if s := v.PortworxVolume; s != nil && first("portworxVolume") {
		e.NotEmpty(childOf(p, "portworxVolume", "volumeID"), s.VolumeID)
	}
	if s := v.AzureDisk; s != nil && first("azureDisk") {
		checkAzureDisk(e, s, childOf(p, "azureDisk"))
	}
	if s := v.ScaleIO; s != nil && first("scaleIO") {
		e.NotEmpty(childOf(p, "scaleIO", "gateway"), s.Gateway)
		e.NotEmpty(childOf(p, "scaleIO", "system"), s.System)
		e.NotEmpty(childOf(p, "scaleIO", "volumeName"), s.VolumeName)
	}
	if s := v.Local; s != nil && first("local") {
		if e.NotEmpty(childOf(p, "local", "path"), s.Path) {
			checkNoBacksteps(e, s.Path, childOf(p, "local", "path"))
		}
		if pv.Spec.NodeAffinity == nil {
			e.Required(childOf(p, "nodeAffinity"), "Local volume requires node affinity")
		}
	}
	if s := v.StorageOS; s != nil && first("storageos") {
		sp := childOf(p, "storageos")
		if e.NotEmpty(childOf(sp, "volumeName"), s.VolumeName) {
			e.DNSLabel(childOf(sp, "volumeName"), s.VolumeName)
		}
		if s.VolumeNamespace != "" {
			e.DNSLabel(childOf(sp, "volumeNamespace"), s.VolumeNamespace)
		}
		if ref := s.SecretRef; ref != nil {
			e.NotEmpty(childOf(sp, "secretRef", "name"), ref.Name)
			e.NotEmpty(childOf(sp, "secretRef", "namespace"), ref.Namespace)
		}
	}
	if s := v.CSI; s != nil && first("csi") {
		sp := childOf(p, "csi")
		checkCSI(e, &corev1.CSIVolumeSource{Driver: s.Driver}, sp)
		e.NotEmpty(childOf(sp, "volumeHandle"), s.VolumeHandle)
		checkPersistentSecret(e, s.ControllerPublishSecretRef, childOf(sp, "controllerPublishSecretRef"))
		checkPersistentSecret(e, s.ControllerExpandSecretRef, childOf(sp, "controllerExpandSecretRef"))
		checkPersistentSecret(e, s.NodePublishSecretRef, childOf(sp, "nodePublishSecretRef"))
		checkPersistentSecret(e, s.NodeExpandSecretRef, childOf(sp, "nodeExpandSecretRef"))
	}
	if !found {
		e.Required(p, "must specify a volume type")
	}
}

func checkPersistentSecret(e *rules.Errors, ref *corev1.SecretReference, p *field.Path) {
	if ref == nil {
		return
	}
	if e.NotEmpty(childOf(p, "name"), ref.Name) {
		e.DNSSubdomain(childOf(p, "name"), ref.Name)
	}
	if e.NotEmpty(childOf(p, "namespace"), ref.Namespace) {
		e.DNSLabel(childOf(p, "namespace"), ref.Namespace)
	}
}

func checkPersistentISCSI(e *rules.Errors, s *corev1.ISCSIPersistentVolumeSource, volume string, p *field.Path) {
	name := func(p *field.Path, name string) {
		if form := iscsiNames()[name[:min(3, len(name))]]; form == nil || !form.MatchString(name) {
			e.Invalid(p, name, "must be valid format")
		}
	}
	e.NotEmpty(childOf(p, "targetPortal"), s.TargetPortal)
	if s.InitiatorName != nil && len(volume+":"+s.TargetPortal) > 64 {
		e.Invalid(childOf(p, "targetportal"), s.TargetPortal,
			"Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.")
	}
	if e.NotEmpty(childOf(p, "iqn"), s.IQN) {
		name(childOf(p, "iqn"), s.IQN)
	}
	if s.Lun < 0 || s.Lun > 255 {
		e.Invalid(childOf(p, "lun"), s.Lun, validation.InclusiveRangeError(0, 255))
	}
	if (s.DiscoveryCHAPAuth || s.SessionCHAPAuth) && s.SecretRef == nil {
		e.Required(childOf(p, "secretRef"), "")
	}
	if s.SecretRef != nil {
		e.NotEmpty(childOf(p, "secretRef", "name"), s.SecretRef.Name)
	}
	if s.InitiatorName != nil {
		name(childOf(p, "initiatorname"), *s.InitiatorName)
	}
}
