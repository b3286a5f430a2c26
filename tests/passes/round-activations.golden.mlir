module attributes {dhlo.activations = "int8", dhlo.rounded = 2 : i64} {
  func.func @main(%arg0: tensor<?x64xf32, #dhlo.shape<["n", "64"]>>, %arg1: tensor<2xi32>) -> (tensor<?x32xf32, #dhlo.shape<["n", "32"]>>, tensor<?x32xf32, #dhlo.shape<["n", "32"]>>, tensor<?x32xf32, #dhlo.shape<["n", "32"]>>) {
    %0 = "dhlo.weight"() {name_ = "codes"} : () -> tensor<32x64xi8>
    %1 = "dhlo.weight"() {name_ = "scale"} : () -> tensor<32x4xbf16>
    %2 = "dhlo.dequantize"(%0, %1) {code = "i4", dtype = "f32"} : (tensor<32x64xi8>, tensor<32x4xbf16>) -> tensor<32x64xf32>
    %3 = "dhlo.transpose"(%2) {perm = [1, 0]} : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %4 = "dhlo.rounded_matmul"(%arg0, %3) {group = 16 : i64} : (tensor<?x64xf32, #dhlo.shape<["n", "64"]>>, tensor<64x32xf32>) -> tensor<?x32xf32, #dhlo.shape<["n", "32"]>>
    %5 = "dhlo.weight"() {name_ = "experts"} : () -> tensor<2x64x32xi8>
    %6 = "dhlo.dequantize"(%5) {code = "i8", dtype = "f32"} : (tensor<2x64x32xi8>) -> tensor<2x64x32xf32>
    %7 = "dhlo.rounded_grouped_matmul"(%arg0, %6, %arg1) {group = 64 : i64} : (tensor<?x64xf32, #dhlo.shape<["n", "64"]>>, tensor<2x64x32xf32>, tensor<2xi32>) -> tensor<?x32xf32, #dhlo.shape<["n", "32"]>>
    %8 = "dhlo.weight"() {name_ = "floats"} : () -> tensor<64x32xui8>
    %9 = "dhlo.dequantize"(%8) {code = "f8e5m2", dtype = "f32"} : (tensor<64x32xui8>) -> tensor<64x32xf32>
    %10 = "dhlo.matmul"(%arg0, %9) : (tensor<?x64xf32, #dhlo.shape<["n", "64"]>>, tensor<64x32xf32>) -> tensor<?x32xf32, #dhlo.shape<["n", "32"]>>
    return %4, %7, %10 : tensor<?x32xf32, #dhlo.shape<["n", "32"]>>, tensor<?x32xf32, #dhlo.shape<["n", "32"]>>, tensor<?x32xf32, #dhlo.shape<["n", "32"]>>
  }
}
