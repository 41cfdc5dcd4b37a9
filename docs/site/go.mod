module github.com/apikeel/kelson/docs/site

go 1.26.3

require github.com/yuin/goldmark v1.8.7
