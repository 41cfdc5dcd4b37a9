module github.com/apikeel/kelson/test/bench

go 1.26.3

require sigs.k8s.io/yaml v1.6.0

require go.yaml.in/yaml/v2 v2.4.4 // indirect
