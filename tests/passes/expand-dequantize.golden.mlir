module {
  func.func @main(%arg0: tensor<?xi64, #dhlo.shape<["m"]>>, %arg1: tensor<?x16x8x8xf32, #dhlo.shape<["n", "16", "8", "8"]>>) -> (tensor<?x64xf32, #dhlo.shape<["m", "64"]>>, tensor<?x64xf32, #dhlo.shape<["m", "64"]>>, tensor<?x32x7x7xf32, #dhlo.shape<["n", "32", "7", "7"]>>) {
    %0 = "dhlo.weight"() {name_ = "bytes"} : () -> tensor<32x64xi8>
    %1 = "dhlo.weight"() {name_ = "bytes.scale"} : () -> tensor<32x4xbf16>
    %2 = "dhlo.weight"() {name_ = "bytes.zero"} : () -> tensor<32x4xbf16>
    %3 = "dhlo.weight"() {name_ = "widened.4"} : () -> tensor<32x64xf32>
    %4 = "dhlo.convert"(%0) : (tensor<32x64xi8>) -> tensor<32x64xf32>
    %5 = "dhlo.convert"(%1) : (tensor<32x4xbf16>) -> tensor<32x4xf32>
    %6 = "dhlo.broadcast"(%5) {dims = [0, 1]} : (tensor<32x4xf32>) -> tensor<32x4x16xf32>
    %7 = "dhlo.reshape"(%6) : (tensor<32x4x16xf32>) -> tensor<32x64xf32>
    %8 = "dhlo.convert"(%2) : (tensor<32x4xbf16>) -> tensor<32x4xf32>
    %9 = "dhlo.broadcast"(%8) {dims = [0, 1]} : (tensor<32x4xf32>) -> tensor<32x4x16xf32>
    %10 = "dhlo.reshape"(%9) : (tensor<32x4x16xf32>) -> tensor<32x64xf32>
    %11 = "dhlo.sub"(%4, %10) : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
    %12 = "dhlo.mul"(%11, %7) : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
    %13 = "dhlo.take"(%12, %arg0) {at = 0 : i64, dims = [0], wrap = false} : (tensor<32x64xf32>, tensor<?xi64, #dhlo.shape<["m"]>>) -> tensor<?x64xf32, #dhlo.shape<["m", "64"]>>
    %14 = "dhlo.weight"() {name_ = "floats"} : () -> tensor<32x64xui8>
    %15 = "dhlo.convert"(%14) : (tensor<32x64xui8>) -> tensor<32x64xi16>
    %16 = "dhlo.full"() {value = "7"} : () -> tensor<32x64xi16>
    %17 = "dhlo.and"(%15, %16) : (tensor<32x64xi16>, tensor<32x64xi16>) -> tensor<32x64xi16>
    %18 = "dhlo.full"() {value = "9"} : () -> tensor<32x64xi16>
    %19 = "dhlo.shl"(%17, %18) : (tensor<32x64xi16>, tensor<32x64xi16>) -> tensor<32x64xi16>
    %20 = "dhlo.full"() {value = "8"} : () -> tensor<32x64xi16>
    %21 = "dhlo.and"(%15, %20) : (tensor<32x64xi16>, tensor<32x64xi16>) -> tensor<32x64xi16>
    %22 = "dhlo.full"() {value = "12"} : () -> tensor<32x64xi16>
    %23 = "dhlo.shl"(%21, %22) : (tensor<32x64xi16>, tensor<32x64xi16>) -> tensor<32x64xi16>
    %24 = "dhlo.or"(%19, %23) : (tensor<32x64xi16>, tensor<32x64xi16>) -> tensor<32x64xi16>
    %25 = "dhlo.bitcast"(%24) : (tensor<32x64xi16>) -> tensor<32x64xf16>
    %26 = "dhlo.convert"(%25) : (tensor<32x64xf16>) -> tensor<32x64xf32>
    %27 = "dhlo.full"() {value = "16384.0"} : () -> tensor<32x64xf32>
    %28 = "dhlo.mul"(%26, %27) : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
    %29 = "dhlo.take"(%28, %arg0) {at = 0 : i64, dims = [0], wrap = false} : (tensor<32x64xf32>, tensor<?xi64, #dhlo.shape<["m"]>>) -> tensor<?x64xf32, #dhlo.shape<["m", "64"]>>
    %30 = "dhlo.reshape"(%3) : (tensor<32x64xf32>) -> tensor<32x16x2x2xf32>
    %31 = "dhlo.conv"(%arg1, %30) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (tensor<?x16x8x8xf32, #dhlo.shape<["n", "16", "8", "8"]>>, tensor<32x16x2x2xf32>) -> tensor<?x32x7x7xf32, #dhlo.shape<["n", "32", "7", "7"]>>
    return %13, %29, %31 : tensor<?x64xf32, #dhlo.shape<["m", "64"]>>, tensor<?x64xf32, #dhlo.shape<["m", "64"]>>, tensor<?x32x7x7xf32, #dhlo.shape<["n", "32", "7", "7"]>>
  }
}
