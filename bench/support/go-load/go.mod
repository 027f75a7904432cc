module gatehouse/bench/support/go-load

go 1.26.0
