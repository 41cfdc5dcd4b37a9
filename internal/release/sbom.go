package main

import (
	"encoding/json"
	"runtime/debug"
	"time"
)

// component is a library in a software bill of materials.
type component struct {
	Type    string `json:"type"`
	BOMRef  string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl"`
}

// sbom returns the software bill of materials of a binary as CycloneDX 1.5, from what the
// binary itself says that it was built from.
func sbom(info *debug.BuildInfo, version string, t target, at time.Time) ([]byte, error) {
	libraries := []component{goModule("library", "std", info.GoVersion)}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		libraries = append(libraries, goModule("library", module.Path, module.Version))
	}
	properties := []map[string]string{{"name": "platform", "value": t.String()}}
	for _, set := range info.Settings {
		properties = append(properties, map[string]string{"name": "go:" + set.Key, "value": set.Value})
	}
	main := goModule("application", info.Main.Path, version)
	refs := make([]string, 0, len(libraries))
	for _, library := range libraries {
		refs = append(refs, library.BOMRef)
	}
	return json.MarshalIndent(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
		"metadata": map[string]any{
			"timestamp": at.Format(time.RFC3339), "component": main, "properties": properties,
		},
		"components":   libraries,
		"dependencies": []map[string]any{{"ref": main.BOMRef, "dependsOn": refs}},
	}, "", "  ")
}

func goModule(kind, path, version string) component {
	purl := "pkg:golang/" + path + "@" + version
	return component{Type: kind, BOMRef: purl, Name: path, Version: version, PURL: purl}
}
