module {
  func.func @main(%arg0: tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "h + 2", "w + 2"]>>, %arg1: tensor<?x64xf32, #dhlo.shape<["k", "64"]>>, %arg2: tensor<2xi32>) -> (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "h", "w"]>>, tensor<?x32xf32, #dhlo.shape<["k", "32"]>>, tensor<?x32xf32, #dhlo.shape<["k", "32"]>>, tensor<16x64xf32>, tensor<8x64xf32>) {
    %0 = "dhlo.weight"() {name_ = "conv"} : () -> tensor<4x3x3x3xf32>
    %1 = "dhlo.weight"() {name_ = "gain"} : () -> tensor<4xf32>
    %2 = "dhlo.weight"() {name_ = "var"} : () -> tensor<4xf32>
    %3 = "dhlo.full"() {value = "0.001"} : () -> tensor<4xf32>
    %4 = "dhlo.weight"() {name_ = "folded.5"} : () -> tensor<4xf32>
    %5 = "dhlo.weight"() {name_ = "folded.6"} : () -> tensor<4xf32>
    %6 = "dhlo.weight"() {name_ = "folded.7"} : () -> tensor<4xf32>
    %7 = "dhlo.weight"() {name_ = "folded.8"} : () -> tensor<4xf32>
    %8 = "dhlo.broadcast"(%7) {dims = [0]} : (tensor<4xf32>) -> tensor<4x3x3x3xf32>
    %9 = "dhlo.weight"() {name_ = "folded.9"} : () -> tensor<4x3x3x3xf32>
    %10 = "dhlo.conv"(%arg0, %9) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "h + 2", "w + 2"]>>, tensor<4x3x3x3xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "h", "w"]>>
    %11 = "dhlo.broadcast"(%7) {dims = [1]} : (tensor<4xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "h", "w"]>>
    %12 = "dhlo.weight"() {name_ = "experts"} : () -> tensor<2x32x64xf32>
    %13 = "dhlo.weight"() {name_ = "folded.10"} : () -> tensor<2x64x32xf32>
    %14 = "dhlo.grouped_matmul"(%arg1, %13, %arg2) : (tensor<?x64xf32, #dhlo.shape<["k", "64"]>>, tensor<2x64x32xf32>, tensor<2xi32>) -> tensor<?x32xf32, #dhlo.shape<["k", "32"]>>
    %15 = "dhlo.weight"() {name_ = "linear"} : () -> tensor<32x64xf32>
    %16 = "dhlo.transpose"(%15) {perm = [1, 0]} : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %17 = "dhlo.matmul"(%arg1, %16) : (tensor<?x64xf32, #dhlo.shape<["k", "64"]>>, tensor<64x32xf32>) -> tensor<?x32xf32, #dhlo.shape<["k", "32"]>>
    %18 = "dhlo.iota"() {dim = 0 : i64, start = "0", step = "1"} : () -> tensor<8xi64>
    %19 = "dhlo.full"() {value = "2"} : () -> tensor<8xi64>
    %20 = "dhlo.mul"(%18, %19) : (tensor<8xi64>, tensor<8xi64>) -> tensor<8xi64>
    %21 = "dhlo.sub"(%20, %18) : (tensor<8xi64>, tensor<8xi64>) -> tensor<8xi64>
    %22 = "dhlo.add"(%21, %19) : (tensor<8xi64>, tensor<8xi64>) -> tensor<8xi64>
    %23 = "dhlo.weight"() {name_ = "folded.11"} : () -> tensor<16xi64>
    %24 = "dhlo.take"(%15, %23) {at = 0 : i64, dims = [0], wrap = true} : (tensor<32x64xf32>, tensor<16xi64>) -> tensor<16x64xf32>
    %25 = "dhlo.take"(%15, %20) {at = 0 : i64, dims = [0], wrap = true} : (tensor<32x64xf32>, tensor<8xi64>) -> tensor<8x64xf32>
    return %10, %14, %17, %24, %25 : tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "h", "w"]>>, tensor<?x32xf32, #dhlo.shape<["k", "32"]>>, tensor<?x32xf32, #dhlo.shape<["k", "32"]>>, tensor<16x64xf32>, tensor<8x64xf32>
  }
}
