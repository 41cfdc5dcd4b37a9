package core

import (
	"path"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validatePersistentVolume judges a volume; what the old one, nil on create,
// has against the rules may stay.
func validatePersistentVolume(pv, old *corev1.PersistentVolume) field.ErrorList {
	var e problems
	spec, p := &pv.Spec, field.NewPath("spec")
	checkAccessModes(&e, spec.AccessModes, "", p.Child("accessModes"))
	cp := p.Child("capacity")
	if len(spec.Capacity) == 0 {
		e.required(cp, "")
	}
	if _, ok := spec.Capacity[corev1.ResourceStorage]; !ok || len(spec.Capacity) > 1 {
		e.add(field.NotSupported(cp, spec.Capacity, []corev1.ResourceName{corev1.ResourceStorage}))
	}
	for _, name := range resourceNames(spec.Capacity) {
		checkBasicQuantity(&e, spec.Capacity, name, cp)
		if size := spec.Capacity[name]; size.Sign() <= 0 {
			e.invalid(cp.Key(string(name)), size.String(), "must be greater than zero")
		}
	}
	rp := p.Child("persistentVolumeReclaimPolicy")
	if policy := spec.PersistentVolumeReclaimPolicy; policy != "" {
		oneOf(&e, rp, policy, corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRecycle, corev1.PersistentVolumeReclaimRetain)
	}
	if a := spec.NodeAffinity; a != nil {
		if a.Required != nil {
			checkNodeSelector(&e, a.Required, p.Child("nodeAffinity", "required"), badVolumeAffinity(old))
		} else {
			e.required(p.Child("nodeAffinity", "required"), "must specify required node constraints")
		}
	}
	checkPersistentSource(&e, pv, p)
	if s := spec.HostPath; s != nil && path.Clean(s.Path) == "/" && spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		e.forbidden(rp, "may not be 'recycle' for a hostPath mount of '/'")
	}
	if spec.StorageClassName != "" {
		e.subdomain(p.Child("storageClassName"), spec.StorageClassName)
	}
	oneOfPointer(&e, p.Child("volumeMode"), spec.VolumeMode, corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)
	if class := spec.VolumeAttributesClassName; class != nil {
		if *class == "" {
			e.required(p.Child("volumeAttributesClassName"), "an empty string is disallowed")
		} else {
			e.subdomain(p.Child("volumeAttributesClassName"), *class)
		}
		if spec.CSI == nil {
			e.required(p.Child("csi"), "has to be specified when using volumeAttributesClassName")
		}
	}
	if _, ok := pv.Annotations[mountOptionsAnnotation]; ok && !takesMountOptions(&spec.PersistentVolumeSource) {
		e.forbidden(field.NewPath("metadata", "annotations", mountOptionsAnnotation), "may not specify mount options for this volume type")
	}
	return field.ErrorList(e)
}

// checkAccessModes judges the modes of a volume or a claim; missing is what to
// say if there are none.
func checkAccessModes(e *problems, modes []corev1.PersistentVolumeAccessMode, missing string, p *field.Path) {
	if len(modes) == 0 {
		e.required(p, missing)
	}
	alone, others := false, false
	for _, mode := range modes {
		switch mode {
		case corev1.ReadWriteOncePod:
			alone = true
		case corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce:
			others = true
		default:
			oneOf(e, p, mode, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod)
		}
	}
	if alone && others {
		e.forbidden(p, "may not use ReadWriteOncePod with other access modes")
	}
}

func badVolumeAffinity(old *corev1.PersistentVolume) bool {
	if old == nil || old.Spec.NodeAffinity == nil || old.Spec.NodeAffinity.Required == nil {
		return false
	}
	for _, t := range old.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, x := range t.MatchExpressions {
			for _, value := range x.Values {
				if len(validation.IsValidLabelValue(value)) > 0 {
					return true
				}
			}
		}
	}
	return false
}

func takesMountOptions(s *corev1.PersistentVolumeSource) bool {
	return s.GCEPersistentDisk != nil || s.AWSElasticBlockStore != nil || s.Glusterfs != nil || s.NFS != nil || s.RBD != nil ||
		s.Quobyte != nil || s.ISCSI != nil || s.Cinder != nil || s.CephFS != nil || s.AzureFile != nil || s.VsphereVolume != nil ||
		s.AzureDisk != nil || s.PhotonPersistentDisk != nil
}

// checkPersistentSource wants exactly one source, and that one right. As with
// the volumes of pods, messages have a few names of their own.
func checkPersistentSource(e *problems, pv *corev1.PersistentVolume, p *field.Path) {
	v, found := &pv.Spec.PersistentVolumeSource, false
	first := func(name string) bool {
		if found {
			e.forbidden(p.Child(name), oneVolumeType)
			return false
		}
		found = true
		return true
	}
	if s := v.HostPath; s != nil && first("hostPath") {
		checkHostPath(e, s, p.Child("hostPath"))
	}
	if s := v.GCEPersistentDisk; s != nil && first("gcePersistentDisk") {
		e.need(p.Child("persistentDisk", "pdName"), s.PDName)
		checkPartition(e, s.Partition, p.Child("persistentDisk", "partition"))
	}
	if s := v.AWSElasticBlockStore; s != nil && first("awsElasticBlockStore") {
		e.need(p.Child("awsElasticBlockStore", "volumeID"), s.VolumeID)
		checkPartition(e, s.Partition, p.Child("awsElasticBlockStore", "partition"))
	}
	if s := v.Glusterfs; s != nil && first("glusterfs") {
		sp := p.Child("glusterfs")
		e.need(sp.Child("endpoints"), s.EndpointsName)
		e.need(sp.Child("path"), s.Path)
		if ns := s.EndpointsNamespace; ns != nil && *ns == "" {
			e.invalid(sp.Child("endpointsNamespace"), *ns, "if the endpointnamespace is set, it must be a valid namespace name")
		} else if ns != nil {
			e.each(sp.Child("endpointsNamespace"), *ns, apivalidation.ValidateNamespaceName(*ns, false))
		}
	}
	if s := v.Flocker; s != nil && first("flocker") {
		checkFlocker(e, s, p.Child("flocker"))
	}
	if s := v.NFS; s != nil && first("nfs") {
		e.need(p.Child("nfs", "server"), s.Server)
		e.need(p.Child("nfs", "path"), s.Path)
		if !path.IsAbs(s.Path) {
			e.invalid(p.Child("nfs", "path"), s.Path, "must be an absolute path")
		}
	}
	if s := v.RBD; s != nil && first("rbd") {
		checkMonitors(e, s.CephMonitors, p.Child("rbd"))
		e.need(p.Child("rbd", "image"), s.RBDImage)
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
		e.need(p.Child("cinder", "volumeID"), s.VolumeID)
		if ref := s.SecretRef; ref != nil {
			e.need(p.Child("cinder", "secretRef", "name"), ref.Name)
			e.need(p.Child("cinder", "secretRef", "namespace"), ref.Namespace)
		}
	}
	if s := v.FC; s != nil && first("fc") {
		checkFC(e, s, p.Child("fc"))
	}
	// Alone of all it may come after another one, as it always could.
	if s := v.FlexVolume; s != nil {
		found = true
		checkFlexVolume(e, &corev1.FlexVolumeSource{Driver: s.Driver, Options: s.Options}, p.Child("flexVolume"))
	}
	if s := v.AzureFile; s != nil && first("azureFile") {
		e.need(p.Child("azureFile", "secretName"), s.SecretName)
		e.need(p.Child("azureFile", "shareName"), s.ShareName)
		if s.SecretNamespace != nil {
			e.need(p.Child("azureFile", "secretNamespace"), *s.SecretNamespace)
		}
	}
	if s := v.VsphereVolume; s != nil && first("vsphereVolume") {
		e.need(p.Child("vsphereVolume", "volumePath"), s.VolumePath)
	}
	if s := v.PhotonPersistentDisk; s != nil && first("photonPersistentDisk") {
		e.need(p.Child("photonPersistentDisk", "pdID"), s.PdID)
	}
	if s := v.PortworxVolume; s != nil && first("portworxVolume") {
		e.need(p.Child("portworxVolume", "volumeID"), s.VolumeID)
	}
	if s := v.AzureDisk; s != nil && first("azureDisk") {
		checkAzureDisk(e, s, p.Child("azureDisk"))
	}
	if s := v.ScaleIO; s != nil && first("scaleIO") {
		e.need(p.Child("scaleIO", "gateway"), s.Gateway)
		e.need(p.Child("scaleIO", "system"), s.System)
		e.need(p.Child("scaleIO", "volumeName"), s.VolumeName)
	}
	if s := v.Local; s != nil && first("local") {
		if e.need(p.Child("local", "path"), s.Path) {
			checkNoBacksteps(e, s.Path, p.Child("local", "path"))
		}
		if pv.Spec.NodeAffinity == nil {
			e.required(p.Child("nodeAffinity"), "Local volume requires node affinity")
		}
	}
	if s := v.StorageOS; s != nil && first("storageos") {
		sp := p.Child("storageos")
		if e.need(sp.Child("volumeName"), s.VolumeName) {
			e.label(sp.Child("volumeName"), s.VolumeName)
		}
		if s.VolumeNamespace != "" {
			e.label(sp.Child("volumeNamespace"), s.VolumeNamespace)
		}
		if ref := s.SecretRef; ref != nil {
			e.need(sp.Child("secretRef", "name"), ref.Name)
			e.need(sp.Child("secretRef", "namespace"), ref.Namespace)
		}
	}
	if s := v.CSI; s != nil && first("csi") {
		sp := p.Child("csi")
		checkCSI(e, &corev1.CSIVolumeSource{Driver: s.Driver}, sp)
		e.need(sp.Child("volumeHandle"), s.VolumeHandle)
		checkPersistentSecret(e, s.ControllerPublishSecretRef, sp.Child("controllerPublishSecretRef"))
		checkPersistentSecret(e, s.ControllerExpandSecretRef, sp.Child("controllerExpandSecretRef"))
		checkPersistentSecret(e, s.NodePublishSecretRef, sp.Child("nodePublishSecretRef"))
		checkPersistentSecret(e, s.NodeExpandSecretRef, sp.Child("nodeExpandSecretRef"))
	}
	if !found {
		e.required(p, "must specify a volume type")
	}
}

func checkPersistentSecret(e *problems, ref *corev1.SecretReference, p *field.Path) {
	if ref == nil {
		return
	}
	if e.need(p.Child("name"), ref.Name) {
		e.subdomain(p.Child("name"), ref.Name)
	}
	if e.need(p.Child("namespace"), ref.Namespace) {
		e.label(p.Child("namespace"), ref.Namespace)
	}
}

func checkPersistentISCSI(e *problems, s *corev1.ISCSIPersistentVolumeSource, volume string, p *field.Path) {
	name := func(p *field.Path, name string) {
		if form := iscsiNames()[name[:min(3, len(name))]]; form == nil || !form.MatchString(name) {
			e.invalid(p, name, "must be valid format")
		}
	}
	e.need(p.Child("targetPortal"), s.TargetPortal)
	if s.InitiatorName != nil && len(volume+":"+s.TargetPortal) > 64 {
		e.invalid(p.Child("targetportal"), s.TargetPortal,
			"Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.")
	}
	if e.need(p.Child("iqn"), s.IQN) {
		name(p.Child("iqn"), s.IQN)
	}
	if s.Lun < 0 || s.Lun > 255 {
		e.invalid(p.Child("lun"), s.Lun, validation.InclusiveRangeError(0, 255))
	}
	if (s.DiscoveryCHAPAuth || s.SessionCHAPAuth) && s.SecretRef == nil {
		e.required(p.Child("secretRef"), "")
	}
	if s.SecretRef != nil {
		e.need(p.Child("secretRef", "name"), s.SecretRef.Name)
	}
	if s.InitiatorName != nil {
		name(p.Child("initiatorname"), *s.InitiatorName)
	}
}
