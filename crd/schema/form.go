package schema

import "time"

// Settled reports whether reading the object from the store returns it unchanged: Prune,
// Coerce and Default would do nothing. False is always a correct answer.
func (s *Schema) Settled(obj map[string]any) bool {
	for _, name := range []string{"apiVersion", "kind"} {
		if text, ok := obj[name].(string); !ok || text == "" {
			return false
		}
	}
	meta, ok := obj["metadata"].(map[string]any)
	if !ok || !isCanonicalMeta(meta) || s.root.properties["metadata"] != nil && s.root.properties["metadata"].defaults {
		return false
	}
	return settledObject(obj, s.root, true)
}

func settledObject(obj map[string]any, n *node, root bool) bool {
	if n.embedded {
		return false
	}
	for name, child := range n.properties {
		if _, ok := obj[name]; child.fallback != nil && !ok {
			return false
		}
	}
	for name, v := range obj {
		if root && isMeta(name) {
			continue
		}
		child, known := n.child(name)
		if !known && n.preserve {
			continue
		}
		if !known || !settledValue(v, child) {
			return false
		}
	}
	return true
}

func settledValue(v any, n *node) bool {
	switch v := v.(type) {
	case nil:
		return n == nil || n.nullable
	case map[string]any:
		return n != nil && settledObject(v, n, false)
	case []any:
		if n == nil || n.items == nil || n.preserve {
			return false
		}
		for _, item := range v {
			if !settledValue(item, n.items) {
				return false
			}
		}
	}
	return true
}

// isCanonicalMeta reports whether metadata is exactly as ObjectMeta encodes it: every field is
// known, of the right type, and in the canonical form.
func isCanonicalMeta(meta map[string]any) bool {
	for name, v := range meta {
		ok := false
		switch name {
		case "name", "generateName", "namespace", "selfLink", "uid", "resourceVersion":
			ok = isWord(v)
		case "generation":
			n, isInt := v.(int64)
			ok = isInt && n != 0
		case "deletionGracePeriodSeconds":
			_, ok = v.(int64)
		case "creationTimestamp", "deletionTimestamp":
			ok = isTime(v)
		case "labels", "annotations":
			texts, isMap := v.(map[string]any)
			ok = isMap && len(texts) > 0
			for _, text := range texts {
				_, isText := text.(string)
				ok = ok && isText
			}
		case "finalizers":
			ok = allItems(v, func(item any) bool { _, isText := item.(string); return isText })
		case "ownerReferences":
			ok = allItems(v, isOwner)
		case "managedFields":
			ok = allItems(v, isEntry)
		}
		if !ok {
			return false
		}
	}
	return true
}

func isWord(v any) bool {
	text, ok := v.(string)
	return ok && text != ""
}

// isTime reports whether a value is a time as metav1.Time encodes it.
func isTime(v any) bool {
	const form = "2006-01-02T15:04:05Z"
	text, _ := v.(string)
	if len(text) != len(form) {
		return false
	}
	t, err := time.Parse(form, text)
	return err == nil && !t.IsZero()
}

// allItems reports whether v is a non-empty list and holds is true for all its items.
func allItems(v any, holds func(any) bool) bool {
	list, _ := v.([]any)
	for _, item := range list {
		if !holds(item) {
			return false
		}
	}
	return len(list) > 0
}

func isOwner(v any) bool {
	owner, _ := v.(map[string]any)
	for _, name := range []string{"apiVersion", "kind", "name", "uid"} {
		if _, ok := owner[name].(string); !ok {
			return false
		}
	}
	known := 4
	for _, name := range []string{"controller", "blockOwnerDeletion"} {
		if _, ok := owner[name].(bool); ok {
			known++
		}
	}
	return len(owner) == known
}

func isEntry(v any) bool {
	entry, _ := v.(map[string]any)
	for name, v := range entry {
		ok := false
		switch name {
		case "manager", "operation", "apiVersion", "fieldsType", "subresource":
			ok = isWord(v)
		case "time":
			ok = isTime(v)
		case "fieldsV1":
			_, ok = v.(map[string]any)
		}
		if !ok {
			return false
		}
	}
	return entry != nil
}
