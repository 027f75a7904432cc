module gatehouse/test/clients/http2/go

go 1.26.0
