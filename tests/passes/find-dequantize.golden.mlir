module {
  func.func @main(%arg0: tensor<?x64xf32, #dhlo.shape<["n", "64"]>>, %arg1: tensor<?xi64, #dhlo.shape<["m"]>>) -> (tensor<?x32xf32, #dhlo.shape<["n", "32"]>>, tensor<?x32xf32, #dhlo.shape<["n", "32"]>>, tensor<?x32xf32, #dhlo.shape<["n", "32"]>>, tensor<?x32xf32, #dhlo.shape<["n", "32"]>>, tensor<?x64xf32, #dhlo.shape<["m", "64"]>>) {
    %0 = "dhlo.weight"() {name_ = "bytes.s"} : () -> tensor<32x1xf32>
    %1 = "dhlo.weight"() {name_ = "bytes"} : () -> tensor<32x64xi8>
    %2 = "dhlo.weight"() {name_ = "bytes.scale"} : () -> tensor<32x1xf32>
    %3 = "dhlo.dequantize"(%1, %2) {code = "i8", dtype = "f32"} : (tensor<32x64xi8>, tensor<32x1xf32>) -> tensor<32x64xf32>
    %4 = "dhlo.weight"() {name_ = "bytes"} : () -> tensor<32x64xi8>
    %5 = "dhlo.weight"() {name_ = "bytes.scale"} : () -> tensor<32x1xf32>
    %6 = "dhlo.dequantize"(%4, %5) {code = "i8", dtype = "f32"} : (tensor<32x64xi8>, tensor<32x1xf32>) -> tensor<32x64xf32>
    %7 = "dhlo.transpose"(%6) {perm = [1, 0]} : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %8 = "dhlo.matmul"(%arg0, %7) : (tensor<?x64xf32, #dhlo.shape<["n", "64"]>>, tensor<64x32xf32>) -> tensor<?x32xf32, #dhlo.shape<["n", "32"]>>
    %9 = "dhlo.weight"() {name_ = "nibbles.1"} : () -> tensor<32x64xui8>
    %10 = "dhlo.weight"() {name_ = "nibbles.scale"} : () -> tensor<32x4xf32>
    %11 = "dhlo.weight"() {name_ = "nibbles.zero"} : () -> tensor<32x4xf32>
    %12 = "dhlo.dequantize"(%9, %10, %11) {code = "ui4", dtype = "f32"} : (tensor<32x64xui8>, tensor<32x4xf32>, tensor<32x4xf32>) -> tensor<32x64xf32>
    %13 = "dhlo.transpose"(%12) {perm = [1, 0]} : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %14 = "dhlo.matmul"(%arg0, %13) : (tensor<?x64xf32, #dhlo.shape<["n", "64"]>>, tensor<64x32xf32>) -> tensor<?x32xf32, #dhlo.shape<["n", "32"]>>
    %15 = "dhlo.weight"() {name_ = "floats.1"} : () -> tensor<32x64xui8>
    %16 = "dhlo.weight"() {name_ = "bytes.scale"} : () -> tensor<32x1xf32>
    %17 = "dhlo.dequantize"(%15, %16) {code = "f8e4m3fn", dtype = "f32"} : (tensor<32x64xui8>, tensor<32x1xf32>) -> tensor<32x64xf32>
    %18 = "dhlo.transpose"(%17) {perm = [1, 0]} : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %19 = "dhlo.matmul"(%arg0, %18) : (tensor<?x64xf32, #dhlo.shape<["n", "64"]>>, tensor<64x32xf32>) -> tensor<?x32xf32, #dhlo.shape<["n", "32"]>>
    %20 = "dhlo.weight"() {name_ = "bytes"} : () -> tensor<32x64xi8>
    %21 = "dhlo.dequantize"(%20) {code = "i8", dtype = "f32"} : (tensor<32x64xi8>) -> tensor<32x64xf32>
    %22 = "dhlo.transpose"(%21) {perm = [1, 0]} : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %23 = "dhlo.matmul"(%arg0, %22) : (tensor<?x64xf32, #dhlo.shape<["n", "64"]>>, tensor<64x32xf32>) -> tensor<?x32xf32, #dhlo.shape<["n", "32"]>>
    %24 = "dhlo.reshape"(%0) : (tensor<32x1xf32>) -> tensor<32xf32>
    %25 = "dhlo.broadcast"(%24) {dims = [1]} : (tensor<32xf32>) -> tensor<?x32xf32, #dhlo.shape<["n", "32"]>>
    %26 = "dhlo.mul"(%23, %25) : (tensor<?x32xf32, #dhlo.shape<["n", "32"]>>, tensor<?x32xf32, #dhlo.shape<["n", "32"]>>) -> tensor<?x32xf32, #dhlo.shape<["n", "32"]>>
    %27 = "dhlo.take"(%3, %arg1) {at = 0 : i64, dims = [0], wrap = false} : (tensor<32x64xf32>, tensor<?xi64, #dhlo.shape<["m"]>>) -> tensor<?x64xf32, #dhlo.shape<["m", "64"]>>
    return %8, %14, %19, %26, %27 : tensor<?x32xf32, #dhlo.shape<["n", "32"]>>, tensor<?x32xf32, #dhlo.shape<["n", "32"]>>, tensor<?x32xf32, #dhlo.shape<["n", "32"]>>, tensor<?x32xf32, #dhlo.shape<["n", "32"]>>, tensor<?x64xf32, #dhlo.shape<["m", "64"]>>
  }
}
