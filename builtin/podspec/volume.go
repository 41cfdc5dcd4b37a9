package podspec

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

	"github.com/apikeel/kelson/builtin/rules"
)

const oneVolumeType = "may not specify more than 1 volume type"

// checkVolumes validates the volumes of a pod and returns the valid ones by name.
// meta is nil for a template.
func checkVolumes(e *rules.Errors, volumes []corev1.Volume, meta *metav1.ObjectMeta, p *field.Path, allow *Allowances) map[string]*corev1.VolumeSource {
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
		v, vp := &volumes[i], itemOf(p, i)
		before := len(*e)
		checkVolumeSource(e, v, podName, vp, allow)
		if e.NotEmpty(childOf(vp, "name"), v.Name) {
			e.DNSLabel(childOf(vp, "name"), v.Name)
		}
		if good[v.Name] != nil {
			e.Duplicate(childOf(vp, "name"), v.Name)
		}
		if len(*e) == before {
			good[v.Name] = &v.VolumeSource
		}
		if c := v.PersistentVolumeClaim; c != nil && claims.Has(c.ClaimName) {
			e.Invalid(childOf(vp, "persistentVolumeClaim", "claimName"), c.ClaimName,
				"must not reference a PVC that gets created for an ephemeral volume")
		}
	}
	return good
}

// checkVolumeSource validates the source of a volume; there must be exactly one.
// Some field names in the messages differ from those in the API, as in
// Kubernetes.
func checkVolumeSource(e *rules.Errors, v *corev1.Volume, podName string, p *field.Path, allow *Allowances) {
	found := false
	first := func(name string) bool {
		if found {
			e.Forbidden(childOf(p, name), oneVolumeType)
			return false
		}
		found = true
		return true
	}
	if s := v.EmptyDir; s != nil {
		found = true
		if s.SizeLimit != nil && s.SizeLimit.Sign() < 0 {
			e.Forbidden(childOf(p, "emptyDir", "sizeLimit"), "SizeLimit field must be a valid resource quantity")
		}
		if s.Mode != nil && (*s.Mode < 0 || *s.Mode > 0o1777) {
			e.Invalid(childOf(p, "emptyDir", "mode"), *s.Mode, "must be a number between 0 and 01777 (octal), both inclusive")
		}
	}
	if s := v.HostPath; s != nil && first("hostPath") {
		checkHostPath(e, s, childOf(p, "hostPath"))
	}
	if s := v.GitRepo; s != nil && first("gitRepo") {
		e.NotEmpty(childOf(p, "gitRepo", "repository"), s.Repository)
		checkDescendingPath(e, s.Directory, childOf(p, "gitRepo", "directory"))
	}
	if s := v.GCEPersistentDisk; s != nil && first("gcePersistentDisk") {
		e.NotEmpty(childOf(p, "persistentDisk", "pdName"), s.PDName)
		checkPartition(e, s.Partition, childOf(p, "persistentDisk", "partition"))
	}
	if s := v.AWSElasticBlockStore; s != nil && first("awsElasticBlockStore") {
		e.NotEmpty(childOf(p, "awsElasticBlockStore", "volumeID"), s.VolumeID)
		checkPartition(e, s.Partition, childOf(p, "awsElasticBlockStore", "partition"))
	}
	if s := v.Secret; s != nil && first("secret") {
		sp := childOf(p, "secret")
		e.NotEmpty(childOf(sp, "secretName"), s.SecretName)
		checkFiles(e, s.DefaultMode, s.DefaultUser, s.Items, sp)
	}
	if s := v.NFS; s != nil && first("nfs") {
		e.NotEmpty(childOf(p, "nfs", "server"), s.Server)
		e.NotEmpty(childOf(p, "nfs", "path"), s.Path)
		if !path.IsAbs(s.Path) {
			e.Invalid(childOf(p, "nfs", "path"), s.Path, "must be an absolute path")
		}
	}
	if s := v.ISCSI; s != nil {
		if first("iscsi") {
			checkISCSI(e, s, childOf(p, "iscsi"))
		}
		if s.InitiatorName != nil && len(v.Name+":"+s.TargetPortal) > 64 {
			e.Invalid(childOf(p, "name"), v.Name,
				"Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.")
		}
	}
	if s := v.Glusterfs; s != nil && first("glusterfs") {
		e.NotEmpty(childOf(p, "glusterfs", "endpoints"), s.EndpointsName)
		e.NotEmpty(childOf(p, "glusterfs", "path"), s.Path)
	}
	if s := v.Flocker; s != nil && first("flocker") {
		checkFlocker(e, s, childOf(p, "flocker"))
	}
	if s := v.PersistentVolumeClaim; s != nil && first("persistentVolumeClaim") {
		e.NotEmpty(childOf(p, "persistentVolumeClaim", "claimName"), s.ClaimName)
	}
	if s := v.RBD; s != nil && first("rbd") {
		checkMonitors(e, s.CephMonitors, childOf(p, "rbd"))
		e.NotEmpty(childOf(p, "rbd", "image"), s.RBDImage)
	}
	if s := v.Cinder; s != nil && first("cinder") {
		e.NotEmpty(childOf(p, "cinder", "volumeID"), s.VolumeID)
		checkSecretRef(e, s.SecretRef, childOf(p, "cinder", "secretRef"))
	}
	if s := v.CephFS; s != nil && first("cephFS") {
		checkMonitors(e, s.Monitors, childOf(p, "cephfs"))
	}
	if s := v.Quobyte; s != nil && first("quobyte") {
		checkQuobyte(e, s, childOf(p, "quobyte"))
	}
	if s := v.DownwardAPI; s != nil && first("downwarAPI") {
		sp := childOf(p, "downwardAPI")
		checkFiles(e, s.DefaultMode, s.DefaultUser, nil, sp)
		for i := range s.Items {
			checkDownwardFile(e, &s.Items[i], sp)
		}
	}
	if s := v.FC; s != nil && first("fc") {
		checkFC(e, s, childOf(p, "fc"))
	}
	if s := v.FlexVolume; s != nil && first("flexVolume") {
		checkFlexVolume(e, s, childOf(p, "flexVolume"))
	}
	if s := v.ConfigMap; s != nil && first("configMap") {
		sp := childOf(p, "configMap")
		e.NotEmpty(childOf(sp, "name"), s.Name)
		checkFiles(e, s.DefaultMode, s.DefaultUser, s.Items, sp)
	}
	if s := v.AzureFile; s != nil && first("azureFile") {
		e.NotEmpty(childOf(p, "azureFile", "secretName"), s.SecretName)
		e.NotEmpty(childOf(p, "azureFile", "shareName"), s.ShareName)
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
	if s := v.StorageOS; s != nil && first("storageos") {
		checkStorageOS(e, s, childOf(p, "storageos"))
	}
	if s := v.Projected; s != nil && first("projected") {
		checkProjected(e, s, childOf(p, "projected"), allow)
	}
	if s := v.ScaleIO; s != nil && first("scaleIO") {
		e.NotEmpty(childOf(p, "scaleIO", "gateway"), s.Gateway)
		e.NotEmpty(childOf(p, "scaleIO", "system"), s.System)
		e.NotEmpty(childOf(p, "scaleIO", "volumeName"), s.VolumeName)
	}
	if s := v.CSI; s != nil && first("csi") {
		checkCSI(e, s, childOf(p, "csi"))
	}
	if s := v.Ephemeral; s != nil && first("ephemeral") {
		checkEphemeralVolume(e, v, podName, p)
	}
	if s := v.Image; s != nil && first("image") {
		if !allow.emptyImageReference {
			e.NotEmpty(childOf(p, "image", "reference"), s.Reference)
		}
		checkPullPolicy(e, s.PullPolicy, childOf(p, "image", "pullPolicy"))
	}
	if !found {
		e.Required(p, "must specify a volume type")
	}
}

func checkHostPath(e *rules.Errors, s *corev1.HostPathVolumeSource, p *field.Path) {
	if !e.NotEmpty(childOf(p, "path"), s.Path) {
		return
	}
	checkNoBacksteps(e, s.Path, childOf(p, "path"))
	rules.OneOfPointer(e, childOf(p, "type"), s.Type, corev1.HostPathUnset, corev1.HostPathBlockDev, corev1.HostPathCharDev,
		corev1.HostPathDirectory, corev1.HostPathDirectoryOrCreate, corev1.HostPathFile, corev1.HostPathFileOrCreate,
		corev1.HostPathSocket)
}

// checkPartition validates the number of a partition. The message names 1 as the
// smallest, as in Kubernetes, although 0, the whole disk, is accepted.
func checkPartition(e *rules.Errors, partition int32, p *field.Path) {
	if partition < 0 || partition > 255 {
		e.Invalid(p, partition, validation.InclusiveRangeError(1, 255))
	}
}

func checkMonitors(e *rules.Errors, monitors []string, p *field.Path) {
	if len(monitors) == 0 {
		e.Required(childOf(p, "monitors"), "")
	}
}

func checkSecretRef(e *rules.Errors, ref *corev1.LocalObjectReference, p *field.Path) {
	if ref != nil {
		e.NotEmpty(childOf(p, "name"), ref.Name)
	}
}

// iscsiNames are the three forms of iSCSI names, by prefix.
var iscsiNames = sync.OnceValue(func() map[string]*regexp.Regexp {
	return map[string]*regexp.Regexp{
		"iqn": regexp.MustCompile(`iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$`),
		"eui": regexp.MustCompile(`^eui.[[:alnum:]]{16}$`),
		"naa": regexp.MustCompile(`^naa.[[:alnum:]]{32}$`),
	}
})

func checkISCSI(e *rules.Errors, s *corev1.ISCSIVolumeSource, p *field.Path) {
	name := func(p *field.Path, name string) {
		form := iscsiNames()[name[:min(3, len(name))]]
		switch {
		case form == nil:
			e.Invalid(p, name, "must be valid format starting with iqn, eui, or naa")
		case !form.MatchString(name):
			e.Invalid(p, name, "must be valid format")
		}
	}
	e.NotEmpty(childOf(p, "targetPortal"), s.TargetPortal)
	if e.NotEmpty(childOf(p, "iqn"), s.IQN) {
		name(childOf(p, "iqn"), s.IQN)
	}
	if s.Lun < 0 || s.Lun > 255 {
		e.Invalid(childOf(p, "lun"), s.Lun, validation.InclusiveRangeError(0, 255))
	}
	if (s.DiscoveryCHAPAuth || s.SessionCHAPAuth) && s.SecretRef == nil {
		e.Required(childOf(p, "secretRef"), "")
	}
	if s.InitiatorName != nil {
		name(childOf(p, "initiatorname"), *s.InitiatorName)
	}
}

func checkFlocker(e *rules.Errors, s *corev1.FlockerVolumeSource, p *field.Path) {
	switch {
	case s.DatasetName == "" && s.DatasetUUID == "":
		e.Required(p, "one of datasetName and datasetUUID is required")
	case s.DatasetName != "" && s.DatasetUUID != "":
		e.Invalid(p, "resource", "datasetName and datasetUUID can not be specified simultaneously")
	}
	if strings.Contains(s.DatasetName, "/") {
		e.Invalid(childOf(p, "datasetName"), s.DatasetName, "must not contain '/'")
	}
}

func checkQuobyte(e *rules.Errors, s *corev1.QuobyteVolumeSource, p *field.Path) {
	const pairs = "must be a host:port pair or multiple pairs separated by commas"
	switch {
	case s.Registry == "":
		e.Required(childOf(p, "registry"), pairs)
	case len(s.Tenant) > 64:
		e.Required(childOf(p, "tenant"), "must be a UUID and may not exceed a length of 64 characters")
	default:
		for pair := range strings.SplitSeq(s.Registry, ",") {
			if _, _, err := net.SplitHostPort(pair); err != nil {
				e.Invalid(childOf(p, "registry"), s.Registry, pairs)
			}
		}
	}
	e.NotEmpty(childOf(p, "volume"), s.Volume)
}

func checkFC(e *rules.Errors, s *corev1.FCVolumeSource, p *field.Path) {
	switch {
	case len(s.TargetWWNs) == 0 && len(s.WWIDs) == 0:
		e.Required(childOf(p, "targetWWNs"), "must specify either targetWWNs or wwids, but not both")
	case len(s.TargetWWNs) != 0 && len(s.WWIDs) != 0:
		e.Invalid(childOf(p, "targetWWNs"), s.TargetWWNs, "targetWWNs and wwids can not be specified simultaneously")
	}
	if len(s.TargetWWNs) == 0 {
		return
	}
	if s.Lun == nil {
		e.Required(childOf(p, "lun"), "lun is required if targetWWNs is specified")
	} else if *s.Lun < 0 || *s.Lun > 255 {
		e.Invalid(childOf(p, "lun"), s.Lun, validation.InclusiveRangeError(0, 255))
	}
}

func checkFlexVolume(e *rules.Errors, s *corev1.FlexVolumeSource, p *field.Path) {
	e.NotEmpty(childOf(p, "driver"), s.Driver)
	for option := range s.Options {
		domain, _, _ := strings.Cut(option, "/")
		if domain = "." + strings.ToLower(domain); strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io") {
			e.Invalid(entryOf(childOf(p, "options"), option), option, "kubernetes.io and k8s.io namespaces are reserved")
		}
	}
}

func checkAzureDisk(e *rules.Errors, s *corev1.AzureDiskVolumeSource, p *field.Path) {
	e.NotEmpty(childOf(p, "diskName"), s.DiskName)
	e.NotEmpty(childOf(p, "diskURI"), s.DataDiskURI)
	rules.OneOfPointer(e, childOf(p, "cachingMode"), s.CachingMode,
		corev1.AzureDataDiskCachingNone, corev1.AzureDataDiskCachingReadOnly, corev1.AzureDataDiskCachingReadWrite)
	if s.Kind == nil {
		return
	}
	rules.OneOf(e, childOf(p, "kind"), *s.Kind, corev1.AzureDedicatedBlobDisk, corev1.AzureManagedDisk, corev1.AzureSharedBlobDisk)
	prefix, form := "https://", "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"
	if *s.Kind == corev1.AzureManagedDisk {
		prefix, form = "/subscriptions/", "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"
	}
	if !strings.HasPrefix(s.DataDiskURI, prefix) {
		e.Add(field.NotSupported(childOf(p, "diskURI"), s.DataDiskURI, []string{form}))
	}
}

func checkStorageOS(e *rules.Errors, s *corev1.StorageOSVolumeSource, p *field.Path) {
	if e.NotEmpty(childOf(p, "volumeName"), s.VolumeName) {
		e.DNSLabel(childOf(p, "volumeName"), s.VolumeName)
	}
	if s.VolumeNamespace != "" {
		e.DNSLabel(childOf(p, "volumeNamespace"), s.VolumeNamespace)
	}
	checkSecretRef(e, s.SecretRef, childOf(p, "secretRef"))
}

func checkCSI(e *rules.Errors, s *corev1.CSIVolumeSource, p *field.Path) {
	if e.NotEmpty(childOf(p, "driver"), s.Driver) {
		if len(s.Driver) > 63 {
			e.Add(field.TooLong(childOf(p, "driver"), "", 63))
		}
		e.InvalidEach(childOf(p, "driver"), s.Driver, validation.IsDNS1123Subdomain(strings.ToLower(s.Driver)))
	}
	if ref := s.NodePublishSecretRef; ref != nil && e.NotEmpty(childOf(p, "nodePublishSecretRef", "name"), ref.Name) {
		e.DNSSubdomain(childOf(p, "name"), ref.Name)
	}
}

// checkEphemeralVolume validates the claim template of an ephemeral volume, and
// the name that the claim will have.
func checkEphemeralVolume(e *rules.Errors, v *corev1.Volume, podName string, p *field.Path) {
	t, tp := v.Ephemeral.VolumeClaimTemplate, childOf(p, "ephemeral", "volumeClaimTemplate")
	if t == nil {
		e.Required(tp, "")
	} else {
		e.Add(ValidateClaimTemplate(t, tp)...)
	}
	if podName != "" && v.Name != "" {
		claim := podName + "-" + v.Name
		for _, m := range apivalidation.NameIsDNSSubdomain(claim, false) {
			e.Invalid(childOf(p, "name"), v.Name, fmt.Sprintf("PVC name %q: %v", claim, m))
		}
	}
}

// checkNoBacksteps reports a path with "..", with which it could leave the volume.
func checkNoBacksteps(e *rules.Errors, target string, p *field.Path) {
	if hasBackstep(target) {
		e.Invalid(p, target, "must not contain '..'")
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

func checkDescendingPath(e *rules.Errors, target string, p *field.Path) {
	if path.IsAbs(target) {
		e.Invalid(p, target, "must be a relative path")
	}
	checkNoBacksteps(e, target, p)
}

// checkFilePath is checkDescendingPath for files that the kubelet writes: the
// path may not begin with "..", which the kubelet uses itself.
func checkFilePath(e *rules.Errors, target string, p *field.Path) {
	checkDescendingPath(e, target, p)
	if strings.HasPrefix(target, "..") && !strings.HasPrefix(target, "../") {
		e.Invalid(p, target, "must not start with '..'")
	}
}
