{{/* Contradictory values fail the rendering with a message that names the remedy. */}}
{{- define "gatehouse.validate" -}}
{{- $values := .Values -}}
{{- $sidecar := include "gatehouse.isSidecar" . -}}
{{- $redis := include "gatehouse.usesRedis" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (include "gatehouse.fullname" .)) -}}
{{- fail (printf "\nfullnameOverride: is required; %q is not a valid name of a Service (lower-case letters, digits and dashes, starting with a letter)" (include "gatehouse.fullname" .)) -}}
{{- end -}}
{{- if not $values.signing.existingSecret -}}
{{- fail "\nsigning.existingSecret: is missing; create the keys with `gatehouse keys new keys.json`, and the Secret with `kubectl create secret generic NAME --from-file=keys.json`" -}}
{{- end -}}
{{- if and $values.tls.existingSecret $values.tls.certManager.enabled -}}
{{- fail "\ntls: existingSecret and certManager.enabled contradict each other; keep one of them" -}}
{{- end -}}
{{- if and $values.tls.terminatedInFront (or $values.tls.existingSecret $values.tls.certManager.enabled) -}}
{{- fail "\ntls.terminatedInFront: contradicts tls.existingSecret and tls.certManager.enabled; keep one of them" -}}
{{- end -}}
{{- if and $values.tls.terminatedInFront (dig "listen" "tls" false (default dict $values.config)) -}}
{{- fail "\nconfig.listen.tls: has no effect, because gatehouse serves plain HTTP with tls.terminatedInFront; remove one of them" -}}
{{- end -}}
{{- if not (or $values.tls.existingSecret $values.tls.certManager.enabled $values.tls.terminatedInFront) -}}
{{- fail "\ntls: no certificate is configured; set tls.existingSecret or tls.certManager.enabled, or tls.terminatedInFront if TLS is terminated in front of gatehouse" -}}
{{- end -}}
{{- if and $values.tls.certManager.enabled (not $values.tls.certManager.issuerRef.name) -}}
{{- fail "\ntls.certManager.issuerRef.name: is missing; set it to the Issuer that signs the certificate" -}}
{{- end -}}
{{- $named := regexMatch "^[a-z0-9*]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$" (include "gatehouse.publicHost" .) -}}
{{- $isName := and $named (not (regexMatch "^[0-9.]+$" (include "gatehouse.publicHost" .))) -}}
{{- if and $values.tls.certManager.enabled (not $values.tls.certManager.dnsNames) (not $isName) -}}
{{- fail "\ntls.certManager.dnsNames: is missing; list the names of the certificate, because config.publicUrl contains no host name" -}}
{{- end -}}
{{- if and $values.gatewayApi.tlsRoute.enabled (not $values.gatewayApi.tlsRoute.hostnames) (not $isName) -}}
{{- fail "\ngatewayApi.tlsRoute.hostnames: is missing; list the host names, because config.publicUrl contains none" -}}
{{- end -}}
{{- if and $values.existingConfigMap $values.config -}}
{{- fail "\nconfig: has no effect with existingConfigMap; keep one of them" -}}
{{- end -}}
{{- if not (or $values.existingConfigMap (default dict $values.config).publicUrl) -}}
{{- fail "\nconfig.publicUrl: is missing; set it to the address that clients use, such as https://api.example.test" -}}
{{- end -}}
{{- if and $values.clientCA.existingSecret $values.clientCA.existingConfigMap -}}
{{- fail "\nclientCA: existingSecret and existingConfigMap contradict each other; keep one of them" -}}
{{- end -}}
{{- if regexMatch "://[^/@\"\\s]*:[^/@\"\\s]*@" (toJson $values.config) -}}
{{- fail "\nconfig: contains a URL with a password, which would be readable in a ConfigMap; use a setting that ends in File, with secretFiles" -}}
{{- end -}}
{{- include "gatehouse.validateStore" . -}}
{{- include "gatehouse.validateKubernetesIssuer" . -}}
{{- if $sidecar -}}
{{- if not $values.sidecar.podSelector -}}
{{- fail "\nsidecar.podSelector: is missing; set it to the labels of your application's pods" -}}
{{- end -}}
{{- if or $values.autoscaling.enabled (gt (int $values.replicaCount) 1) -}}
{{- fail "\nmode: a sidecar runs in the pods of your application; scale the application, and remove replicaCount and autoscaling" -}}
{{- end -}}
{{- if $values.metrics.serviceMonitor.enabled -}}
{{- fail "\nmetrics.serviceMonitor: requires mode: gateway; for a sidecar, use metrics.podMonitor" -}}
{{- end -}}
{{- if or (eq (int $values.sidecar.upstreamPort) (int $values.ports.https)) (eq (int $values.sidecar.upstreamPort) (int $values.ports.admin)) -}}
{{- fail "\nsidecar.upstreamPort: is also a port of gatehouse in the same pod; change ports.https or ports.admin" -}}
{{- end -}}
{{- end -}}
{{- include "gatehouse.validateBypass" . -}}
{{- include "gatehouse.validateService" . -}}
{{- if $values.autoscaling.enabled -}}
{{- if gt (int $values.autoscaling.minReplicas) (int $values.autoscaling.maxReplicas) -}}
{{- fail "\nautoscaling: minReplicas is greater than maxReplicas" -}}
{{- end -}}
{{- if not (or $values.autoscaling.targetCPUUtilizationPercentage $values.autoscaling.targetMemoryUtilizationPercentage) -}}
{{- fail "\nautoscaling: has no target; set targetCPUUtilizationPercentage or targetMemoryUtilizationPercentage" -}}
{{- end -}}
{{- end -}}
{{- if eq (int $values.ports.https) (int $values.ports.admin) -}}
{{- fail "\nports: https and admin are the same; the admin listener needs its own port" -}}
{{- end -}}
{{- include "gatehouse.validateRouting" . -}}
{{- $needed := add $values.lifecycle.preStopSleepSeconds $values.lifecycle.drainSeconds 5 -}}
{{- if and (not $sidecar) (lt (int $values.lifecycle.terminationGracePeriodSeconds) (int $needed)) -}}
{{- fail (printf "\nlifecycle.terminationGracePeriodSeconds: is too short; with preStopSleepSeconds and drainSeconds it must be at least %d, or running requests are aborted" $needed) -}}
{{- end -}}
{{- if and $values.networkPolicy.enabled (not $values.networkPolicy.adminFrom) (or $values.metrics.serviceMonitor.enabled $values.metrics.podMonitor.enabled) -}}
{{- fail "\nnetworkPolicy.adminFrom: is empty, so Prometheus could not reach the metrics; list the pods of Prometheus" -}}
{{- end -}}
{{- end -}}

{{- define "gatehouse.validateStore" -}}
{{- $values := .Values -}}
{{- $redis := $values.store.redis -}}
{{- if and $values.valkey.enabled (or $redis.url $redis.urlKey $redis.existingSecret $redis.tls.existingSecret) -}}
{{- fail "\nvalkey.enabled: contradicts store.redis; use either the chart's Valkey or your own Redis" -}}
{{- end -}}
{{- if and (eq $values.store.type "redis") (not $values.valkey.enabled) (not (or $redis.url $redis.urlKey)) -}}
{{- fail "\nstore.redis.url: is missing; set it, or store.redis.urlKey with store.redis.existingSecret, or valkey.enabled for evaluation" -}}
{{- end -}}
{{- if and (ne $values.store.type "redis") (not $values.valkey.enabled) (or $redis.url $redis.urlKey $redis.existingSecret $redis.tls.existingSecret) -}}
{{- fail "\nstore.redis: has no effect, because store.type is embedded; set store.type: redis" -}}
{{- end -}}
{{- if and $redis.url $redis.urlKey -}}
{{- fail "\nstore.redis: url and urlKey contradict each other; keep one of them" -}}
{{- end -}}
{{- if and $redis.urlKey (not $redis.existingSecret) -}}
{{- fail "\nstore.redis.urlKey: requires store.redis.existingSecret, the Secret that contains this key" -}}
{{- end -}}
{{- if regexMatch "^[a-z+]+://.*:.*@" $redis.url -}}
{{- fail "\nstore.redis.url: contains a password, which would be readable in a ConfigMap; put it into a Secret (store.redis.existingSecret)" -}}
{{- end -}}
{{- if and $redis.tls.existingSecret $redis.url (not (hasPrefix "rediss" $redis.url)) -}}
{{- fail "\nstore.redis.tls: has no effect, because store.redis.url does not use TLS; start the URL with rediss" -}}
{{- end -}}
{{- if ne (empty $redis.tls.certificateKey) (empty $redis.tls.keyKey) -}}
{{- fail "\nstore.redis.tls: set both certificateKey and keyKey, or neither" -}}
{{- end -}}
{{- if not (include "gatehouse.usesRedis" .) -}}
{{- if include "gatehouse.hasMultiplePods" . -}}
{{- fail "\nstore.type: embedded supports only one pod; for replicaCount above 1 or autoscaling, set store.type: redis" -}}
{{- end -}}
{{- if and (include "gatehouse.isSidecar" .) (not $values.sidecar.singleReplica) -}}
{{- fail "\nstore.type: embedded in a sidecar gives each replica of your application its own store, so that a token of one replica is unknown to the others; set store.type: redis, or sidecar.singleReplica if there is always exactly one replica" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "gatehouse.validateKubernetesIssuer" -}}
{{- $values := .Values -}}
{{- $issuer := $values.kubernetesIssuer -}}
{{- if and $issuer.rbac.create (not $issuer.enabled) -}}
{{- fail "\nkubernetesIssuer.rbac.create: has no effect without kubernetesIssuer.enabled" -}}
{{- end -}}
{{- if $issuer.enabled -}}
{{- if hasKey (dig "trustedIssuers" dict (default dict $values.config)) $issuer.name -}}
{{- fail (printf "\nkubernetesIssuer.name: config.trustedIssuers has an issuer %q already; put its other settings into kubernetesIssuer.config, or choose another name" $issuer.name) -}}
{{- end -}}
{{- if eq $issuer.serviceAccountToken.path "ca.crt" -}}
{{- fail "\nkubernetesIssuer.serviceAccountToken.path: ca.crt is the file of the CA certificate; choose another name" -}}
{{- end -}}
{{- $isApiServer := regexMatch "^https://kubernetes\\.default\\.svc(\\.cluster\\.local)?(:[0-9]+)?/" $issuer.jwksUri -}}
{{- if and $issuer.serviceAccountToken.enabled (not $issuer.serviceAccountToken.audience) (not $isApiServer) -}}
{{- fail "\nkubernetesIssuer.jwksUri: is not the API server of this cluster, and would receive a token for it; set kubernetesIssuer.serviceAccountToken.enabled to false, or its audience" -}}
{{- end -}}
{{- if and $issuer.rbac.create (not $issuer.serviceAccountToken.enabled) -}}
{{- fail "\nkubernetesIssuer.rbac.create: has no effect without kubernetesIssuer.serviceAccountToken.enabled" -}}
{{- end -}}
{{- if and $issuer.rbac.create (include "gatehouse.isSidecar" .) (not $values.serviceAccount.name) -}}
{{- fail "\nserviceAccount.name: is missing; in sidecar mode kubernetesIssuer.rbac.create needs the service account of your application's pods" -}}
{{- end -}}
{{- $policy := $values.networkPolicy -}}
{{- if and $policy.enabled $policy.egress (not $policy.kubeAPIServer.cidrs) -}}
{{- $open := false -}}
{{- range $rule := $policy.egress -}}
{{- range $port := $policy.kubeAPIServer.ports -}}
{{- if include "gatehouse.opensPort" (dict "rule" $rule "port" (int $port) "name" "") -}}{{- $open = true -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $open -}}
{{- fail "\nnetworkPolicy.kubeAPIServer.cidrs: is empty and networkPolicy.egress opens no port of the API server, so gatehouse could not fetch the keys for kubernetesIssuer; list the addresses in `kubectl get endpointslices -n default`" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Values that would allow bypassing gatehouse. */}}
{{- define "gatehouse.validateBypass" -}}
{{- $values := .Values -}}
{{- $policy := $values.networkPolicy -}}
{{- if and $policy.enabled (include "gatehouse.matchesAllSources" $policy.from) (dig "certificates" "forwardedFrom" list (default dict $values.config)) -}}
{{- fail (printf "\nnetworkPolicy.from: %s, so any client at an address in config.certificates.forwardedFrom could send the certificate of another client; list the pods of the proxy" (empty $policy.from | ternary "is empty" "allows all sources")) -}}
{{- end -}}
{{- if $policy.enabled -}}
{{- range $rule := $policy.extraIngress -}}
{{- if include "gatehouse.matchesAllSources" $rule.from -}}
{{- if include "gatehouse.isSidecar" $ -}}
{{- range $rule.ports -}}
{{- if and (kindIs "string" .port) (not (regexMatch "^[0-9]+$" .port)) -}}
{{- fail (printf "\nnetworkPolicy.extraIngress: %q may be the name of the application's port; use the port number, or list the allowed sources in `from`" .port) -}}
{{- end -}}
{{- end -}}
{{- range $port := include "gatehouse.applicationPorts" $ | splitList " " -}}
{{- if include "gatehouse.opensPort" (dict "rule" $rule "port" (int $port) "name" "") -}}
{{- fail (printf "\nnetworkPolicy.extraIngress: opens port %s of the application to all sources, which could bypass gatehouse; list the allowed sources in `from`" $port) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (dig "certificates" "forwardedFrom" list (default dict $values.config)) (include "gatehouse.opensPort" (dict "rule" $rule "port" (int $values.ports.https) "name" "gatehouse")) -}}
{{- fail "\nnetworkPolicy.extraIngress: opens the public port to all sources, so any client at an address in config.certificates.forwardedFrom could send the certificate of another client; list the allowed sources in `from`" -}}
{{- end -}}
{{- if include "gatehouse.opensPort" (dict "rule" $rule "port" (int $values.ports.admin) "name" "gh-admin") -}}
{{- fail "\nnetworkPolicy.extraIngress: opens the admin port to all sources; list the allowed sources in networkPolicy.adminFrom" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether `from` of a rule allows every source: empty, every address, or every pod of every namespace. */}}
{{- define "gatehouse.matchesAllSources" -}}
{{- $all := empty . -}}
{{- range . -}}
{{- $block := default dict .ipBlock -}}
{{- if or (empty .) (and (hasSuffix "/0" (default "" $block.cidr)) (empty $block.except)) (and (hasKey . "namespaceSelector") (empty .namespaceSelector) (empty .podSelector)) -}}{{- $all = true -}}{{- end -}}
{{- end -}}
{{- if $all -}}yes{{- end -}}
{{- end -}}

{{/* Whether a rule of the policy opens this port. dict "rule" {} "port" 8443 "name" "" */}}
{{- define "gatehouse.opensPort" -}}
{{- $asked := . -}}
{{- $open := empty .rule.ports -}}
{{- range .rule.ports -}}
{{- if or (not .port) (has (toString .port) (compact (list (toString $asked.port) $asked.name))) (and .endPort (le (int .port) $asked.port) (ge (int .endPort) $asked.port)) -}}{{- $open = true -}}{{- end -}}
{{- end -}}
{{- if $open -}}yes{{- end -}}
{{- end -}}

{{/* The ports of the application in the pod of a sidecar: upstreamPort, and `upstreams` on loopback. */}}
{{- define "gatehouse.applicationPorts" -}}
{{- $ports := list (toString .Values.sidecar.upstreamPort) -}}
{{- range dig "upstreams" dict (default dict .Values.config) -}}
{{- range concat (compact (list .url)) (default list .urls) -}}
{{- if regexMatch "^https?://(localhost|127\\.[0-9.]+|\\[::1\\])(:[0-9]+)?(/|$)" . -}}
{{- $own := regexFind ":[0-9]+(/|$)" . | trimPrefix ":" | trimSuffix "/" -}}
{{- $ports = append $ports (default (hasPrefix "https" . | ternary "443" "80") $own) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- uniq $ports | join " " -}}
{{- end -}}

{{/* Values that the API server would reject later with a less helpful message. */}}
{{- define "gatehouse.validateService" -}}
{{- $service := .Values.service -}}
{{- if and (eq $service.type "ClusterIP") (or $service.nodePort $service.externalTrafficPolicy) -}}
{{- fail "\nservice: nodePort and externalTrafficPolicy require the type NodePort or LoadBalancer" -}}
{{- end -}}
{{- if and (ne $service.type "LoadBalancer") (or $service.loadBalancerClass $service.loadBalancerSourceRanges) -}}
{{- fail "\nservice: loadBalancerClass and loadBalancerSourceRanges require the type LoadBalancer" -}}
{{- end -}}
{{- end -}}

{{- define "gatehouse.validateRouting" -}}
{{- $values := .Values -}}
{{- $certificates := dig "certificates" dict (default dict $values.config) -}}
{{- if and $certificates.forwardedFrom (not $certificates.forwardedHeader) -}}
{{- fail "\nconfig.certificates.forwardedHeader: is missing; set it to the header in which the addresses in config.certificates.forwardedFrom forward the client certificate" -}}
{{- end -}}
{{- $http := $values.gatewayApi.httpRoute -}}
{{- range $name, $front := dict "ingress" $values.ingress "gatewayApi.httpRoute" $http -}}
{{- if and $front.enabled (include "gatehouse.requestsClientCertificates" $) -}}
{{- if not $front.clientCertificates -}}
{{- fail (printf "\n%s: terminates TLS, so client certificates do not reach gatehouse; set %s.clientCertificates, or use gatewayApi.tlsRoute" $name $name) -}}
{{- end -}}
{{- if and (eq $front.clientCertificates "header") (not $values.existingConfigMap) (not (dig "certificates" "forwardedFrom" list (default dict $values.config))) -}}
{{- fail (printf "\n%s.clientCertificates: header requires config.certificates.forwardedFrom, the addresses whose header is trusted" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $values.ingress.enabled $values.tls.terminatedInFront (eq $values.ingress.clientCertificates "passthrough") -}}
{{- fail "\ningress.clientCertificates: passthrough requires TLS in gatehouse, but with tls.terminatedInFront it serves plain HTTP" -}}
{{- end -}}
{{- if and $values.ingress.enabled (not $values.ingress.hosts) -}}
{{- fail "\ningress.hosts: is empty; an Ingress needs a host name" -}}
{{- end -}}
{{- range $name, $route := $values.gatewayApi -}}
{{- if and $route.enabled (not $route.parentRefs) -}}
{{- fail (printf "\ngatewayApi.%s.parentRefs: is empty; list the Gateway of the route" $name) -}}
{{- end -}}
{{- end -}}
{{- if and $values.gatewayApi.tlsRoute.enabled $values.tls.terminatedInFront -}}
{{- fail "\ngatewayApi.tlsRoute: passes TLS through, but with tls.terminatedInFront gatehouse serves plain HTTP" -}}
{{- end -}}
{{- end -}}
