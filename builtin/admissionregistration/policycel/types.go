package policycel

import (
	apiservercel "k8s.io/apiserver/pkg/cel"
)

// object declares a type by its fields. A name with the suffix "?" is optional.
func object(name string, fields map[string]*apiservercel.DeclType) *apiservercel.DeclType {
	declared := make(map[string]*apiservercel.DeclField, len(fields))
	for name, t := range fields {
		required := true
		if n := len(name) - 1; name[n] == '?' {
			name, required = name[:n], false
		}
		declared[name] = apiservercel.NewDeclField(name, t, required, nil, nil)
	}
	return apiservercel.NewObjectType("kubernetes."+name, declared)
}

func list(of *apiservercel.DeclType) *apiservercel.DeclType { return apiservercel.NewListType(of, -1) }

func mapOf(value *apiservercel.DeclType) *apiservercel.DeclType {
	return apiservercel.NewMapType(apiservercel.StringType, value, -1)
}

// requestType declares the variable request; its objects are separate variables.
func requestType() *apiservercel.DeclType {
	text := apiservercel.StringType
	kind := object("GroupVersionKind", map[string]*apiservercel.DeclType{"group": text, "version": text, "kind": text})
	resource := object("GroupVersionResource", map[string]*apiservercel.DeclType{"group": text, "version": text, "resource": text})
	user := object("UserInfo", map[string]*apiservercel.DeclType{
		"username?": text, "uid?": text, "groups?": list(text), "extra?": mapOf(list(text)),
	})
	return object("AdmissionRequest", map[string]*apiservercel.DeclType{
		"kind":                kind,
		"resource":            resource,
		"subResource?":        text,
		"requestKind":         kind,
		"requestResource":     resource,
		"requestSubResource?": text,
		"name":                text,
		"namespace?":          text,
		"operation":           text,
		"userInfo":            user,
		"dryRun?":             apiservercel.BoolType,
		"options?":            apiservercel.DynType,
	})
}

// namespaceType declares the variable namespaceObject.
func namespaceType() *apiservercel.DeclType {
	text, moment := apiservercel.StringType, apiservercel.TimestampType
	condition := object("NamespaceCondition", map[string]*apiservercel.DeclType{
		"status": text, "type": text, "lastTransitionTime": moment, "message": text, "reason": text,
	})
	return object("Namespace", map[string]*apiservercel.DeclType{
		"metadata": object("NamespaceMetadata", map[string]*apiservercel.DeclType{
			"name":                       text,
			"generateName":               text,
			"namespace":                  text,
			"labels":                     mapOf(text),
			"annotations":                mapOf(text),
			"UID":                        text,
			"creationTimestamp":          moment,
			"deletionGracePeriodSeconds": apiservercel.IntType,
			"deletionTimestamp":          moment,
			"generation":                 apiservercel.IntType,
			"resourceVersion":            text,
			"finalizers":                 list(text),
		}),
		"spec":   object("NamespaceSpec", map[string]*apiservercel.DeclType{"finalizers": list(text)}),
		"status": object("NamespaceStatus", map[string]*apiservercel.DeclType{"conditions": list(condition), "phase": text}),
	})
}
