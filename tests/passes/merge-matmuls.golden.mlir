module {
  func.func @main(%arg0: tensor<?x?x8xf32, #dhlo.shape<["n", "s", "8"]>>) -> (tensor<?x?x2x4xf32, #dhlo.shape<["n", "s", "2", "4"]>>, tensor<?x?x1x4xf32, #dhlo.shape<["n", "s", "1", "4"]>>) {
    %0 = "dhlo.weight"() {name_ = "q.weight"} : () -> tensor<8x8xf32>
    %1 = "dhlo.weight"() {name_ = "q.bias"} : () -> tensor<8xf32>
    %2 = "dhlo.transpose"(%0) {perm = [1, 0]} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %3 = "dhlo.weight"() {name_ = "merged.q.weight.k.weight"} : () -> tensor<12x8xf32>
    %4 = "dhlo.transpose"(%3) {perm = [1, 0]} : (tensor<12x8xf32>) -> tensor<8x12xf32>
    %5 = "dhlo.matmul"(%arg0, %4) : (tensor<?x?x8xf32, #dhlo.shape<["n", "s", "8"]>>, tensor<8x12xf32>) -> tensor<?x?x12xf32, #dhlo.shape<["n", "s", "12"]>>
    %6 = "dhlo.weight"() {name_ = "merged.q.bias.k.bias"} : () -> tensor<12xf32>
    %7 = "dhlo.broadcast"(%6) {dims = [2]} : (tensor<12xf32>) -> tensor<?x?x12xf32, #dhlo.shape<["n", "s", "12"]>>
    %8 = "dhlo.add"(%5, %7) : (tensor<?x?x12xf32, #dhlo.shape<["n", "s", "12"]>>, tensor<?x?x12xf32, #dhlo.shape<["n", "s", "12"]>>) -> tensor<?x?x12xf32, #dhlo.shape<["n", "s", "12"]>>
    %9 = "dhlo.slice"(%8) {starts = ["0", "0", "0"], steps = [1, 1, 1]} : (tensor<?x?x12xf32, #dhlo.shape<["n", "s", "12"]>>) -> tensor<?x?x8xf32, #dhlo.shape<["n", "s", "8"]>>
    %10 = "dhlo.slice"(%8) {starts = ["0", "0", "8"], steps = [1, 1, 1]} : (tensor<?x?x12xf32, #dhlo.shape<["n", "s", "12"]>>) -> tensor<?x?x4xf32, #dhlo.shape<["n", "s", "4"]>>
    %11 = "dhlo.matmul"(%arg0, %2) : (tensor<?x?x8xf32, #dhlo.shape<["n", "s", "8"]>>, tensor<8x8xf32>) -> tensor<?x?x8xf32, #dhlo.shape<["n", "s", "8"]>>
    %12 = "dhlo.broadcast"(%1) {dims = [2]} : (tensor<8xf32>) -> tensor<?x?x8xf32, #dhlo.shape<["n", "s", "8"]>>
    %13 = "dhlo.add"(%11, %12) : (tensor<?x?x8xf32, #dhlo.shape<["n", "s", "8"]>>, tensor<?x?x8xf32, #dhlo.shape<["n", "s", "8"]>>) -> tensor<?x?x8xf32, #dhlo.shape<["n", "s", "8"]>>
    %14 = "dhlo.weight"() {name_ = "k.weight"} : () -> tensor<4x8xf32>
    %15 = "dhlo.weight"() {name_ = "k.bias"} : () -> tensor<4xf32>
    %16 = "dhlo.transpose"(%14) {perm = [1, 0]} : (tensor<4x8xf32>) -> tensor<8x4xf32>
    %17 = "dhlo.matmul"(%arg0, %16) : (tensor<?x?x8xf32, #dhlo.shape<["n", "s", "8"]>>, tensor<8x4xf32>) -> tensor<?x?x4xf32, #dhlo.shape<["n", "s", "4"]>>
    %18 = "dhlo.broadcast"(%15) {dims = [2]} : (tensor<4xf32>) -> tensor<?x?x4xf32, #dhlo.shape<["n", "s", "4"]>>
    %19 = "dhlo.add"(%17, %18) : (tensor<?x?x4xf32, #dhlo.shape<["n", "s", "4"]>>, tensor<?x?x4xf32, #dhlo.shape<["n", "s", "4"]>>) -> tensor<?x?x4xf32, #dhlo.shape<["n", "s", "4"]>>
    %20 = "dhlo.reshape"(%9) : (tensor<?x?x8xf32, #dhlo.shape<["n", "s", "8"]>>) -> tensor<?x?x2x4xf32, #dhlo.shape<["n", "s", "2", "4"]>>
    %21 = "dhlo.reshape"(%10) : (tensor<?x?x4xf32, #dhlo.shape<["n", "s", "4"]>>) -> tensor<?x?x1x4xf32, #dhlo.shape<["n", "s", "1", "4"]>>
    return %20, %21 : tensor<?x?x2x4xf32, #dhlo.shape<["n", "s", "2", "4"]>>, tensor<?x?x1x4xf32, #dhlo.shape<["n", "s", "1", "4"]>>
  }
  func.func @adapted(%arg0: tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, %arg1: tensor<2x256xf32>, %arg2: tensor<?xi32, #dhlo.shape<["t"]>>) -> (tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>, tensor<1x?x4xf32, #dhlo.shape<["1", "t", "4"]>>) {
    %0 = "dhlo.weight"() {name_ = "q.weight"} : () -> tensor<8x8xf32>
    %1 = "dhlo.weight"() {name_ = "q.bias"} : () -> tensor<8xf32>
    %2 = "dhlo.transpose"(%0) {perm = [1, 0]} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %3 = "dhlo.weight"() {name_ = "merged.q.weight.k.weight"} : () -> tensor<12x8xf32>
    %4 = "dhlo.transpose"(%3) {perm = [1, 0]} : (tensor<12x8xf32>) -> tensor<8x12xf32>
    %5 = "dhlo.matmul"(%arg0, %4) : (tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, tensor<8x12xf32>) -> tensor<?x12xf32, #dhlo.shape<["t", "12"]>>
    %6 = "dhlo.adapt"(%5, %arg0, %arg1, %arg2) {at = [0, 64], columns = [8, 4], rank = 4 : i64} : (tensor<?x12xf32, #dhlo.shape<["t", "12"]>>, tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, tensor<2x256xf32>, tensor<?xi32, #dhlo.shape<["t"]>>) -> tensor<?x12xf32, #dhlo.shape<["t", "12"]>>
    %7 = "dhlo.weight"() {name_ = "merged.q.bias.k.bias"} : () -> tensor<12xf32>
    %8 = "dhlo.broadcast"(%7) {dims = [1]} : (tensor<12xf32>) -> tensor<?x12xf32, #dhlo.shape<["t", "12"]>>
    %9 = "dhlo.add"(%6, %8) : (tensor<?x12xf32, #dhlo.shape<["t", "12"]>>, tensor<?x12xf32, #dhlo.shape<["t", "12"]>>) -> tensor<?x12xf32, #dhlo.shape<["t", "12"]>>
    %10 = "dhlo.slice"(%9) {starts = ["0", "0"], steps = [1, 1]} : (tensor<?x12xf32, #dhlo.shape<["t", "12"]>>) -> tensor<?x8xf32, #dhlo.shape<["t", "8"]>>
    %11 = "dhlo.slice"(%9) {starts = ["0", "8"], steps = [1, 1]} : (tensor<?x12xf32, #dhlo.shape<["t", "12"]>>) -> tensor<?x4xf32, #dhlo.shape<["t", "4"]>>
    %12 = "dhlo.matmul"(%arg0, %2) : (tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, tensor<8x8xf32>) -> tensor<?x8xf32, #dhlo.shape<["t", "8"]>>
    %13 = "dhlo.adapt"(%12, %arg0, %arg1, %arg2) {at = [0], columns = [8], rank = 4 : i64} : (tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, tensor<2x256xf32>, tensor<?xi32, #dhlo.shape<["t"]>>) -> tensor<?x8xf32, #dhlo.shape<["t", "8"]>>
    %14 = "dhlo.broadcast"(%1) {dims = [1]} : (tensor<8xf32>) -> tensor<?x8xf32, #dhlo.shape<["t", "8"]>>
    %15 = "dhlo.add"(%13, %14) : (tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, tensor<?x8xf32, #dhlo.shape<["t", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["t", "8"]>>
    %16 = "dhlo.weight"() {name_ = "k.weight"} : () -> tensor<4x8xf32>
    %17 = "dhlo.weight"() {name_ = "k.bias"} : () -> tensor<4xf32>
    %18 = "dhlo.transpose"(%16) {perm = [1, 0]} : (tensor<4x8xf32>) -> tensor<8x4xf32>
    %19 = "dhlo.matmul"(%arg0, %18) : (tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, tensor<8x4xf32>) -> tensor<?x4xf32, #dhlo.shape<["t", "4"]>>
    %20 = "dhlo.adapt"(%19, %arg0, %arg1, %arg2) {at = [64], columns = [4], rank = 4 : i64} : (tensor<?x4xf32, #dhlo.shape<["t", "4"]>>, tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, tensor<2x256xf32>, tensor<?xi32, #dhlo.shape<["t"]>>) -> tensor<?x4xf32, #dhlo.shape<["t", "4"]>>
    %21 = "dhlo.broadcast"(%17) {dims = [1]} : (tensor<4xf32>) -> tensor<?x4xf32, #dhlo.shape<["t", "4"]>>
    %22 = "dhlo.add"(%20, %21) : (tensor<?x4xf32, #dhlo.shape<["t", "4"]>>, tensor<?x4xf32, #dhlo.shape<["t", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["t", "4"]>>
    %23 = "dhlo.reshape"(%10) : (tensor<?x8xf32, #dhlo.shape<["t", "8"]>>) -> tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>
    %24 = "dhlo.reshape"(%11) : (tensor<?x4xf32, #dhlo.shape<["t", "4"]>>) -> tensor<1x?x4xf32, #dhlo.shape<["1", "t", "4"]>>
    return %23, %24 : tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>, tensor<1x?x4xf32, #dhlo.shape<["1", "t", "4"]>>
  }
}
