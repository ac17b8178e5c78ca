"""The names of Kubernetes' extensions of JSON Schema."""

PRESERVE = 'x-kubernetes-preserve-unknown-fields'
EMBEDDED = 'x-kubernetes-embedded-resource'
INT_OR_STRING = 'x-kubernetes-int-or-string'
LIST_TYPE = 'x-kubernetes-list-type'
LIST_KEYS = 'x-kubernetes-list-map-keys'
MAP_TYPE = 'x-kubernetes-map-type'
PATCH_STRATEGY = 'x-kubernetes-patch-strategy'
MERGE_KEY = 'x-kubernetes-patch-merge-key'
RULES = 'x-kubernetes-validations'
