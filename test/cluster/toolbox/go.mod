module gatehouse/test/cluster/toolbox

go 1.26
