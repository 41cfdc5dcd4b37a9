kelson run -- kubectl create configmap hello --from-literal=a=b
kelson --data-dir ./data &
#! for i in $(seq 100); do test -s data/kubeconfig && kubectl --kubeconfig data/kubeconfig get --raw /readyz >/dev/null 2>&1 && break; sleep 0.1; done
export KUBECONFIG=$PWD/data/kubeconfig
kubectl create deployment web --image=nginx --replicas=2
kubectl get deployments
kelson snapshot save backup.snap --data-dir ./data
kelson doctor --data-dir ./data
