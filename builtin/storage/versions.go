package storage

import (
	storagev1 "k8s.io/api/storage/v1"
	storagev1alpha1 "k8s.io/api/storage/v1alpha1"
	storagev1beta1 "k8s.io/api/storage/v1beta1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/resource"
)

// Older versions, all with the fields of v1.

func beta(kind string) schema.GroupVersionKind {
	return storagev1beta1.SchemeGroupVersion.WithKind(kind)
}

func alpha(kind string) schema.GroupVersionKind {
	return storagev1alpha1.SchemeGroupVersion.WithKind(kind)
}

func oldCSIDrivers() []resource.Version {
	return []resource.Version{
		resource.AlikeVersion[storagev1beta1.CSIDriver, storagev1beta1.CSIDriverList](beta("CSIDriver"), defaultDriver, nil, nil),
	}
}

func oldCSINodes() []resource.Version {
	return []resource.Version{
		resource.AlikeVersion[storagev1beta1.CSINode, storagev1beta1.CSINodeList, storagev1.CSINode](beta("CSINode"), nil, nil, nil),
	}
}

func oldCSIStorageCapacities() []resource.Version {
	return []resource.Version{
		resource.AlikeVersion[storagev1beta1.CSIStorageCapacity, storagev1beta1.CSIStorageCapacityList, storagev1.CSIStorageCapacity](beta("CSIStorageCapacity"), nil, nil, nil),
		resource.AlikeVersion[storagev1alpha1.CSIStorageCapacity, storagev1alpha1.CSIStorageCapacityList, storagev1.CSIStorageCapacity](alpha("CSIStorageCapacity"), nil, nil, nil),
	}
}

func oldStorageClasses() []resource.Version {
	return []resource.Version{
		resource.AlikeVersion[storagev1beta1.StorageClass, storagev1beta1.StorageClassList](beta("StorageClass"), defaultStorageClass, nil, nil),
	}
}

func oldVolumeAttachments() []resource.Version {
	return []resource.Version{
		resource.AlikeVersion[storagev1beta1.VolumeAttachment, storagev1beta1.VolumeAttachmentList](beta("VolumeAttachment"), defaultAttachment, nil, nil),
		resource.AlikeVersion[storagev1alpha1.VolumeAttachment, storagev1alpha1.VolumeAttachmentList](alpha("VolumeAttachment"), defaultAttachment, nil, nil),
	}
}

func oldVolumeAttributesClasses() []resource.Version {
	return []resource.Version{
		resource.AlikeVersion[storagev1beta1.VolumeAttributesClass, storagev1beta1.VolumeAttributesClassList, storagev1.VolumeAttributesClass](beta("VolumeAttributesClass"), nil, nil, nil),
		resource.AlikeVersion[storagev1alpha1.VolumeAttributesClass, storagev1alpha1.VolumeAttributesClassList, storagev1.VolumeAttributesClass](alpha("VolumeAttributesClass"), nil, nil, nil),
	}
}
