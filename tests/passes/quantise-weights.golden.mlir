module attributes {dhlo.quantised = [{after = 2176 : i64, before = 8192 : i64, error = 5.820000e-03 : f64, format = "int8", name = "embedding"}, {after = 4096 : i64, before = 8192 : i64, error = 1.690000e-03 : f64, format = "bf16", name = "up.weight"}, {after = 8192 : i64, before = 8192 : i64, error = 0.000000e+00 : f64, format = "f32", name = "head"}], dhlo.weights = [["default", "int8"], ["up*", "bf16"], ["head", "f32"]]} {
  func.func @main(%arg0: tensor<?x64xf32, #dhlo.shape<["n", "64"]>>, %arg1: tensor<?xi64, #dhlo.shape<["m"]>>) -> (tensor<?x32xf32, #dhlo.shape<["n", "32"]>>, tensor<?x32xf32, #dhlo.shape<["n", "32"]>>, tensor<?x32xf32, #dhlo.shape<["n", "32"]>>, tensor<?x64xf32, #dhlo.shape<["m", "64"]>>) {
    %0 = "dhlo.weight"() {name_ = "embedding.codes"} : () -> tensor<32x64xi8>
    %1 = "dhlo.weight"() {name_ = "embedding.scale"} : () -> tensor<32x1xf32>
    %2 = "dhlo.dequantize"(%0, %1) {code = "i8", dtype = "f32"} : (tensor<32x64xi8>, tensor<32x1xf32>) -> tensor<32x64xf32>
    %3 = "dhlo.transpose"(%2) {perm = [1, 0]} : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %4 = "dhlo.matmul"(%arg0, %3) : (tensor<?x64xf32, #dhlo.shape<["n", "64"]>>, tensor<64x32xf32>) -> tensor<?x32xf32, #dhlo.shape<["n", "32"]>>
    %5 = "dhlo.take"(%2, %arg1) {at = 0 : i64, dims = [0], wrap = false} : (tensor<32x64xf32>, tensor<?xi64, #dhlo.shape<["m"]>>) -> tensor<?x64xf32, #dhlo.shape<["m", "64"]>>
    %6 = "dhlo.weight"() {name_ = "up.weight.codes"} : () -> tensor<64x32xbf16>
    %7 = "dhlo.convert"(%6) : (tensor<64x32xbf16>) -> tensor<64x32xf32>
    %8 = "dhlo.matmul"(%arg0, %7) : (tensor<?x64xf32, #dhlo.shape<["n", "64"]>>, tensor<64x32xf32>) -> tensor<?x32xf32, #dhlo.shape<["n", "32"]>>
    %9 = "dhlo.weight"() {name_ = "head"} : () -> tensor<64x32xf32>
    %10 = "dhlo.matmul"(%arg0, %9) : (tensor<?x64xf32, #dhlo.shape<["n", "64"]>>, tensor<64x32xf32>) -> tensor<?x32xf32, #dhlo.shape<["n", "32"]>>
    return %4, %8, %10, %5 : tensor<?x32xf32, #dhlo.shape<["n", "32"]>>, tensor<?x32xf32, #dhlo.shape<["n", "32"]>>, tensor<?x32xf32, #dhlo.shape<["n", "32"]>>, tensor<?x64xf32, #dhlo.shape<["m", "64"]>>
  }
}
