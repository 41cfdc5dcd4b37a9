package core

import (
	"fmt"
	"net"
	"path"
	"regexp"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const oneVolumeType = "may not specify more than 1 volume type"

// checkVolumes judges the volumes of a pod and returns the good ones by name.
// meta is nil for a template.
func checkVolumes(e *problems, volumes []corev1.Volume, meta *metav1.ObjectMeta, p *field.Path, allow *allowances) map[string]*corev1.VolumeSource {
	podName := ""
	if meta != nil {
		podName = meta.Name
	}
	// The claims that the pod's own volumes bring into being.
	claims := sets.New[string]()
	for i := range volumes {
		if podName != "" && volumes[i].Ephemeral != nil {
			claims.Insert(podName + "-" + volumes[i].Name)
		}
	}
	good := make(map[string]*corev1.VolumeSource, len(volumes))
	for i := range volumes {
		v, vp := &volumes[i], p.Index(i)
		before := len(*e)
		checkVolumeSource(e, v, podName, vp, allow)
		if e.need(vp.Child("name"), v.Name) {
			e.label(vp.Child("name"), v.Name)
		}
		if good[v.Name] != nil {
			e.duplicate(vp.Child("name"), v.Name)
		}
		if len(*e) == before {
			good[v.Name] = &v.VolumeSource
		}
		if c := v.PersistentVolumeClaim; c != nil && claims.Has(c.ClaimName) {
			e.invalid(vp.Child("persistentVolumeClaim", "claimName"), c.ClaimName,
				"must not reference a PVC that gets created for an ephemeral volume")
		}
	}
	return good
}

// checkVolumeSource wants exactly one source, and that one right. The names of
// a few fields in messages are not those in the API; clients know them so.
func checkVolumeSource(e *problems, v *corev1.Volume, podName string, p *field.Path, allow *allowances) {
	found := false
	first := func(name string) bool {
		if found {
			e.forbidden(p.Child(name), oneVolumeType)
			return false
		}
		found = true
		return true
	}
	if s := v.EmptyDir; s != nil {
		found = true
		if s.SizeLimit != nil && s.SizeLimit.Sign() < 0 {
			e.forbidden(p.Child("emptyDir", "sizeLimit"), "SizeLimit field must be a valid resource quantity")
		}
		if s.Mode != nil && (*s.Mode < 0 || *s.Mode > 0o1777) {
			e.invalid(p.Child("emptyDir", "mode"), *s.Mode, "must be a number between 0 and 01777 (octal), both inclusive")
		}
	}
	if s := v.HostPath; s != nil && first("hostPath") {
		checkHostPath(e, s, p.Child("hostPath"))
	}
	if s := v.GitRepo; s != nil && first("gitRepo") {
		e.need(p.Child("gitRepo", "repository"), s.Repository)
		checkDescendingPath(e, s.Directory, p.Child("gitRepo", "directory"))
	}
	if s := v.GCEPersistentDisk; s != nil && first("gcePersistentDisk") {
		e.need(p.Child("persistentDisk", "pdName"), s.PDName)
		checkPartition(e, s.Partition, p.Child("persistentDisk", "partition"))
	}
	if s := v.AWSElasticBlockStore; s != nil && first("awsElasticBlockStore") {
		e.need(p.Child("awsElasticBlockStore", "volumeID"), s.VolumeID)
		checkPartition(e, s.Partition, p.Child("awsElasticBlockStore", "partition"))
	}
	if s := v.Secret; s != nil && first("secret") {
		sp := p.Child("secret")
		e.need(sp.Child("secretName"), s.SecretName)
		checkFiles(e, s.DefaultMode, s.DefaultUser, s.Items, sp)
	}
	if s := v.NFS; s != nil && first("nfs") {
		e.need(p.Child("nfs", "server"), s.Server)
		e.need(p.Child("nfs", "path"), s.Path)
		if !path.IsAbs(s.Path) {
			e.invalid(p.Child("nfs", "path"), s.Path, "must be an absolute path")
		}
	}
	if s := v.ISCSI; s != nil {
		if first("iscsi") {
			checkISCSI(e, s, p.Child("iscsi"))
		}
		if s.InitiatorName != nil && len(v.Name+":"+s.TargetPortal) > 64 {
			e.invalid(p.Child("name"), v.Name,
				"Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.")
		}
	}
	if s := v.Glusterfs; s != nil && first("glusterfs") {
		e.need(p.Child("glusterfs", "endpoints"), s.EndpointsName)
		e.need(p.Child("glusterfs", "path"), s.Path)
	}
	if s := v.Flocker; s != nil && first("flocker") {
		checkFlocker(e, s, p.Child("flocker"))
	}
	if s := v.PersistentVolumeClaim; s != nil && first("persistentVolumeClaim") {
		e.need(p.Child("persistentVolumeClaim", "claimName"), s.ClaimName)
	}
	if s := v.RBD; s != nil && first("rbd") {
		checkMonitors(e, s.CephMonitors, p.Child("rbd"))
		e.need(p.Child("rbd", "image"), s.RBDImage)
	}
	if s := v.Cinder; s != nil && first("cinder") {
		e.need(p.Child("cinder", "volumeID"), s.VolumeID)
		checkSecretRef(e, s.SecretRef, p.Child("cinder", "secretRef"))
	}
	if s := v.CephFS; s != nil && first("cephFS") {
		checkMonitors(e, s.Monitors, p.Child("cephfs"))
	}
	if s := v.Quobyte; s != nil && first("quobyte") {
		checkQuobyte(e, s, p.Child("quobyte"))
	}
	if s := v.DownwardAPI; s != nil && first("downwarAPI") {
		sp := p.Child("downwardAPI")
		checkFiles(e, s.DefaultMode, s.DefaultUser, nil, sp)
		for i := range s.Items {
			checkDownwardFile(e, &s.Items[i], sp)
		}
	}
	if s := v.FC; s != nil && first("fc") {
		checkFC(e, s, p.Child("fc"))
	}
	if s := v.FlexVolume; s != nil && first("flexVolume") {
		checkFlexVolume(e, s, p.Child("flexVolume"))
	}
	if s := v.ConfigMap; s != nil && first("configMap") {
		sp := p.Child("configMap")
		e.need(sp.Child("name"), s.Name)
		checkFiles(e, s.DefaultMode, s.DefaultUser, s.Items, sp)
	}
	if s := v.AzureFile; s != nil && first("azureFile") {
		e.need(p.Child("azureFile", "secretName"), s.SecretName)
		e.need(p.Child("azureFile", "shareName"), s.ShareName)
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
	if s := v.StorageOS; s != nil && first("storageos") {
		checkStorageOS(e, s, p.Child("storageos"))
	}
	if s := v.Projected; s != nil && first("projected") {
		checkProjected(e, s, p.Child("projected"), allow)
	}
	if s := v.ScaleIO; s != nil && first("scaleIO") {
		e.need(p.Child("scaleIO", "gateway"), s.Gateway)
		e.need(p.Child("scaleIO", "system"), s.System)
		e.need(p.Child("scaleIO", "volumeName"), s.VolumeName)
	}
	if s := v.CSI; s != nil && first("csi") {
		checkCSI(e, s, p.Child("csi"))
	}
	if s := v.Ephemeral; s != nil && first("ephemeral") {
		checkEphemeralVolume(e, v, podName, p)
	}
	if s := v.Image; s != nil && first("image") {
		if !allow.emptyImageReference {
			e.need(p.Child("image", "reference"), s.Reference)
		}
		checkPullPolicy(e, s.PullPolicy, p.Child("image", "pullPolicy"))
	}
	if !found {
		e.required(p, "must specify a volume type")
	}
}

func checkHostPath(e *problems, s *corev1.HostPathVolumeSource, p *field.Path) {
	if !e.need(p.Child("path"), s.Path) {
		return
	}
	checkNoBacksteps(e, s.Path, p.Child("path"))
	oneOfPointer(e, p.Child("type"), s.Type, corev1.HostPathUnset, corev1.HostPathBlockDev, corev1.HostPathCharDev,
		corev1.HostPathDirectory, corev1.HostPathDirectoryOrCreate, corev1.HostPathFile, corev1.HostPathFileOrCreate,
		corev1.HostPathSocket)
}

// checkPartition speaks of 1 although 0, the whole disk, is fine.
func checkPartition(e *problems, partition int32, p *field.Path) {
	if partition < 0 || partition > 255 {
		e.invalid(p, partition, validation.InclusiveRangeError(1, 255))
	}
}

func checkMonitors(e *problems, monitors []string, p *field.Path) {
	if len(monitors) == 0 {
		e.required(p.Child("monitors"), "")
	}
}

func checkSecretRef(e *problems, ref *corev1.LocalObjectReference, p *field.Path) {
	if ref != nil {
		e.need(p.Child("name"), ref.Name)
	}
}

// iscsiNames are the three forms of names of initiators and targets.
var iscsiNames = sync.OnceValue(func() map[string]*regexp.Regexp {
	return map[string]*regexp.Regexp{
		"iqn": regexp.MustCompile(`iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$`),
		"eui": regexp.MustCompile(`^eui.[[:alnum:]]{16}$`),
		"naa": regexp.MustCompile(`^naa.[[:alnum:]]{32}$`),
	}
})

func checkISCSI(e *problems, s *corev1.ISCSIVolumeSource, p *field.Path) {
	name := func(p *field.Path, name string) {
		form := iscsiNames()[name[:min(3, len(name))]]
		switch {
		case form == nil:
			e.invalid(p, name, "must be valid format starting with iqn, eui, or naa")
		case !form.MatchString(name):
			e.invalid(p, name, "must be valid format")
		}
	}
	e.need(p.Child("targetPortal"), s.TargetPortal)
	if e.need(p.Child("iqn"), s.IQN) {
		name(p.Child("iqn"), s.IQN)
	}
	if s.Lun < 0 || s.Lun > 255 {
		e.invalid(p.Child("lun"), s.Lun, validation.InclusiveRangeError(0, 255))
	}
	if (s.DiscoveryCHAPAuth || s.SessionCHAPAuth) && s.SecretRef == nil {
		e.required(p.Child("secretRef"), "")
	}
	if s.InitiatorName != nil {
		name(p.Child("initiatorname"), *s.InitiatorName)
	}
}

func checkFlocker(e *problems, s *corev1.FlockerVolumeSource, p *field.Path) {
	switch {
	case s.DatasetName == "" && s.DatasetUUID == "":
		e.required(p, "one of datasetName and datasetUUID is required")
	case s.DatasetName != "" && s.DatasetUUID != "":
		e.invalid(p, "resource", "datasetName and datasetUUID can not be specified simultaneously")
	}
	if strings.Contains(s.DatasetName, "/") {
		e.invalid(p.Child("datasetName"), s.DatasetName, "must not contain '/'")
	}
}

func checkQuobyte(e *problems, s *corev1.QuobyteVolumeSource, p *field.Path) {
	const pairs = "must be a host:port pair or multiple pairs separated by commas"
	switch {
	case s.Registry == "":
		e.required(p.Child("registry"), pairs)
	case len(s.Tenant) > 64:
		e.required(p.Child("tenant"), "must be a UUID and may not exceed a length of 64 characters")
	default:
		for pair := range strings.SplitSeq(s.Registry, ",") {
			if _, _, err := net.SplitHostPort(pair); err != nil {
				e.invalid(p.Child("registry"), s.Registry, pairs)
			}
		}
	}
	e.need(p.Child("volume"), s.Volume)
}

func checkFC(e *problems, s *corev1.FCVolumeSource, p *field.Path) {
	switch {
	case len(s.TargetWWNs) == 0 && len(s.WWIDs) == 0:
		e.required(p.Child("targetWWNs"), "must specify either targetWWNs or wwids, but not both")
	case len(s.TargetWWNs) != 0 && len(s.WWIDs) != 0:
		e.invalid(p.Child("targetWWNs"), s.TargetWWNs, "targetWWNs and wwids can not be specified simultaneously")
	}
	if len(s.TargetWWNs) == 0 {
		return
	}
	if s.Lun == nil {
		e.required(p.Child("lun"), "lun is required if targetWWNs is specified")
	} else if *s.Lun < 0 || *s.Lun > 255 {
		e.invalid(p.Child("lun"), s.Lun, validation.InclusiveRangeError(0, 255))
	}
}

func checkFlexVolume(e *problems, s *corev1.FlexVolumeSource, p *field.Path) {
	e.need(p.Child("driver"), s.Driver)
	for option := range s.Options {
		domain, _, _ := strings.Cut(option, "/")
		if domain = "." + strings.ToLower(domain); strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io") {
			e.invalid(p.Child("options").Key(option), option, "kubernetes.io and k8s.io namespaces are reserved")
		}
	}
}

func checkAzureDisk(e *problems, s *corev1.AzureDiskVolumeSource, p *field.Path) {
	e.need(p.Child("diskName"), s.DiskName)
	e.need(p.Child("diskURI"), s.DataDiskURI)
	oneOfPointer(e, p.Child("cachingMode"), s.CachingMode,
		corev1.AzureDataDiskCachingNone, corev1.AzureDataDiskCachingReadOnly, corev1.AzureDataDiskCachingReadWrite)
	if s.Kind == nil {
		return
	}
	oneOf(e, p.Child("kind"), *s.Kind, corev1.AzureDedicatedBlobDisk, corev1.AzureManagedDisk, corev1.AzureSharedBlobDisk)
	prefix, form := "https://", "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"
	if *s.Kind == corev1.AzureManagedDisk {
		prefix, form = "/subscriptions/", "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"
	}
	if !strings.HasPrefix(s.DataDiskURI, prefix) {
		e.add(field.NotSupported(p.Child("diskURI"), s.DataDiskURI, []string{form}))
	}
}

func checkStorageOS(e *problems, s *corev1.StorageOSVolumeSource, p *field.Path) {
	if e.need(p.Child("volumeName"), s.VolumeName) {
		e.label(p.Child("volumeName"), s.VolumeName)
	}
	if s.VolumeNamespace != "" {
		e.label(p.Child("volumeNamespace"), s.VolumeNamespace)
	}
	checkSecretRef(e, s.SecretRef, p.Child("secretRef"))
}

func checkCSI(e *problems, s *corev1.CSIVolumeSource, p *field.Path) {
	if e.need(p.Child("driver"), s.Driver) {
		if len(s.Driver) > 63 {
			e.add(field.TooLong(p.Child("driver"), "", 63))
		}
		e.each(p.Child("driver"), s.Driver, validation.IsDNS1123Subdomain(strings.ToLower(s.Driver)))
	}
	if ref := s.NodePublishSecretRef; ref != nil && e.need(p.Child("nodePublishSecretRef", "name"), ref.Name) {
		e.subdomain(p.Child("name"), ref.Name)
	}
}

// checkEphemeralVolume judges the template of a claim, and the name that the
// claim will have.
func checkEphemeralVolume(e *problems, v *corev1.Volume, podName string, p *field.Path) {
	t, tp := v.Ephemeral.VolumeClaimTemplate, p.Child("ephemeral", "volumeClaimTemplate")
	if t == nil {
		e.required(tp, "")
	} else {
		e.add(ValidateClaimTemplate(t, tp)...)
	}
	if podName != "" && v.Name != "" {
		claim := podName + "-" + v.Name
		for _, m := range apivalidation.NameIsDNSSubdomain(claim, false) {
			e.invalid(p.Child("name"), v.Name, fmt.Sprintf("PVC name %q: %v", claim, m))
		}
	}
}

// checkNoBacksteps and its companions keep paths inside of where they belong.
func checkNoBacksteps(e *problems, target string, p *field.Path) {
	if hasBackstep(target) {
		e.invalid(p, target, "must not contain '..'")
	}
}

func hasBackstep(target string) bool {
	for part := range strings.SplitSeq(target, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}

func checkDescendingPath(e *problems, target string, p *field.Path) {
	if path.IsAbs(target) {
		e.invalid(p, target, "must be a relative path")
	}
	checkNoBacksteps(e, target, p)
}

// checkFilePath also keeps clear of the names that the kubelet uses itself.
func checkFilePath(e *problems, target string, p *field.Path) {
	checkDescendingPath(e, target, p)
	if strings.HasPrefix(target, "..") && !strings.HasPrefix(target, "../") {
		e.invalid(p, target, "must not start with '..'")
	}
}
