module {
  func.func @main(%arg0: tensor<?x?x8xf32, #dhlo.shape<["n", "s + 1", "8"]>>) -> tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>> {
    %0 = "dhlo.weight"() {name_ = "q.weight"} : () -> tensor<8x8xf32>
    %1 = "dhlo.weight"() {name_ = "k.weight"} : () -> tensor<8x8xf32>
    %2 = "dhlo.weight"() {name_ = "o.weight"} : () -> tensor<8x8xf32>
    %3 = "dhlo.slice"(%arg0) {starts = ["0", "s", "0"], steps = [1, 1, 1]} : (tensor<?x?x8xf32, #dhlo.shape<["n", "s + 1", "8"]>>) -> tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>
    %4 = "dhlo.matmul"(%3, %0) : (tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>, tensor<8x8xf32>) -> tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>
    %5 = "dhlo.matmul"(%arg0, %1) : (tensor<?x?x8xf32, #dhlo.shape<["n", "s + 1", "8"]>>, tensor<8x8xf32>) -> tensor<?x?x8xf32, #dhlo.shape<["n", "s + 1", "8"]>>
    %6 = "dhlo.reshape"(%4) : (tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>) -> tensor<?x1x2x4xf32, #dhlo.shape<["n", "1", "2", "4"]>>
    %7 = "dhlo.reshape"(%5) : (tensor<?x?x8xf32, #dhlo.shape<["n", "s + 1", "8"]>>) -> tensor<?x?x2x4xf32, #dhlo.shape<["n", "s + 1", "2", "4"]>>
    %8 = "dhlo.transpose"(%6) {perm = [0, 2, 1, 3]} : (tensor<?x1x2x4xf32, #dhlo.shape<["n", "1", "2", "4"]>>) -> tensor<?x2x1x4xf32, #dhlo.shape<["n", "2", "1", "4"]>>
    %9 = "dhlo.transpose"(%7) {perm = [0, 2, 1, 3]} : (tensor<?x?x2x4xf32, #dhlo.shape<["n", "s + 1", "2", "4"]>>) -> tensor<?x2x?x4xf32, #dhlo.shape<["n", "2", "s + 1", "4"]>>
    %10 = "dhlo.attention"(%8, %9, %9) {causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, past = "0", scale = 5.000000e-01 : f64, softcap = 0.000000e+00 : f64} : (tensor<?x2x1x4xf32, #dhlo.shape<["n", "2", "1", "4"]>>, tensor<?x2x?x4xf32, #dhlo.shape<["n", "2", "s + 1", "4"]>>, tensor<?x2x?x4xf32, #dhlo.shape<["n", "2", "s + 1", "4"]>>) -> tensor<?x2x1x4xf32, #dhlo.shape<["n", "2", "1", "4"]>>
    %11 = "dhlo.transpose"(%10) {perm = [0, 2, 1, 3]} : (tensor<?x2x1x4xf32, #dhlo.shape<["n", "2", "1", "4"]>>) -> tensor<?x1x2x4xf32, #dhlo.shape<["n", "1", "2", "4"]>>
    %12 = "dhlo.reshape"(%11) : (tensor<?x1x2x4xf32, #dhlo.shape<["n", "1", "2", "4"]>>) -> tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>
    %13 = "dhlo.matmul"(%12, %2) : (tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>, tensor<8x8xf32>) -> tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>
    %14 = "dhlo.slice"(%arg0) {starts = ["0", "s", "0"], steps = [1, 1, 1]} : (tensor<?x?x8xf32, #dhlo.shape<["n", "s + 1", "8"]>>) -> tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>
    %15 = "dhlo.add"(%13, %14) : (tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>, tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>) -> tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>
    %16 = "dhlo.reduce"(%15) {dims = [2], how = "max"} : (tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>) -> tensor<?x1xf32, #dhlo.shape<["n", "1"]>>
    %17 = "dhlo.reshape"(%16) : (tensor<?x1xf32, #dhlo.shape<["n", "1"]>>) -> tensor<?x1x1xf32, #dhlo.shape<["n", "1", "1"]>>
    %18 = "dhlo.broadcast"(%17) {dims = [0, 1, 2]} : (tensor<?x1x1xf32, #dhlo.shape<["n", "1", "1"]>>) -> tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>
    %19 = "dhlo.div"(%15, %18) : (tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>, tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>) -> tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>
    return %19 : tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>
  }
  func.func @step(%arg0: tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, %arg1: tensor<?xi64, #dhlo.shape<["r"]>>, %arg2: tensor<1x?x8xf32, #dhlo.shape<["1", "p", "8"]>> {dhlo.paged = "pool 0"}, %arg3: tensor<?xi64, #dhlo.shape<["t"]>> {dhlo.paged = "slots 0"}, %arg4: tensor<?x?xi32, #dhlo.shape<["b", "m"]>> {dhlo.paged = "tables 0"}, %arg5: tensor<?xi32, #dhlo.shape<["b + 1"]>> {dhlo.paged = "starts"}, %arg6: tensor<?xi32, #dhlo.shape<["b"]>> {dhlo.paged = "lengths"}) -> (tensor<?x8xf32, #dhlo.shape<["r", "8"]>>, tensor<1x?x8xf32, #dhlo.shape<["1", "p", "8"]>> {dhlo.argument = 2 : i64}) attributes {dhlo.blocks = array<i64: 16, 0>} {
    %0 = "dhlo.weight"() {name_ = "o.weight"} : () -> tensor<8x8xf32>
    %1 = "dhlo.take"(%arg0, %arg1) {at = 0 : i64, dims = [0], wrap = true} : (tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, tensor<?xi64, #dhlo.shape<["r"]>>) -> tensor<?x8xf32, #dhlo.shape<["r", "8"]>>
    %2 = "dhlo.matmul"(%1, %0) : (tensor<?x8xf32, #dhlo.shape<["r", "8"]>>, tensor<8x8xf32>) -> tensor<?x8xf32, #dhlo.shape<["r", "8"]>>
    %3 = "dhlo.take"(%arg0, %arg1) {at = 0 : i64, dims = [0], wrap = true} : (tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, tensor<?xi64, #dhlo.shape<["r"]>>) -> tensor<?x8xf32, #dhlo.shape<["r", "8"]>>
    %4 = "dhlo.add"(%2, %3) : (tensor<?x8xf32, #dhlo.shape<["r", "8"]>>, tensor<?x8xf32, #dhlo.shape<["r", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["r", "8"]>>
    %5 = "dhlo.full"() {value = "2.0"} : () -> tensor<?x8xf32, #dhlo.shape<["r", "8"]>>
    %6 = "dhlo.mul"(%4, %5) : (tensor<?x8xf32, #dhlo.shape<["r", "8"]>>, tensor<?x8xf32, #dhlo.shape<["r", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["r", "8"]>>
    %7 = "dhlo.reshape"(%arg0) : (tensor<?x8xf32, #dhlo.shape<["t", "8"]>>) -> tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>
    %8 = "dhlo.scatter"(%arg2, %arg3, %7) {at = 1 : i64, dims = [1], how = "set", wrap = false} : (tensor<1x?x8xf32, #dhlo.shape<["1", "p", "8"]>>, tensor<?xi64, #dhlo.shape<["t"]>>, tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>) -> tensor<1x?x8xf32, #dhlo.shape<["1", "p", "8"]>>
    return %6, %8 : tensor<?x8xf32, #dhlo.shape<["r", "8"]>>, tensor<1x?x8xf32, #dhlo.shape<["1", "p", "8"]>>
  }
}
