module {
  func.func @main(%arg0: tensor<?xi64, #dhlo.shape<["m"]>>, %arg1: tensor<?x16x8x8xf32, #dhlo.shape<["n", "16", "8", "8"]>>) -> (tensor<?x64xf32, #dhlo.shape<["m", "64"]>>, tensor<?x64xf32, #dhlo.shape<["m", "64"]>>, tensor<?x32x7x7xf32, #dhlo.shape<["n", "32", "7", "7"]>>) {
    %0 = "dhlo.weight"() {name_ = "bytes"} : () -> tensor<32x64xi8>
    %1 = "dhlo.weight"() {name_ = "bytes.scale"} : () -> tensor<32x4xbf16>
    %2 = "dhlo.weight"() {name_ = "bytes.zero"} : () -> tensor<32x4xbf16>
    %3 = "dhlo.weight"() {name_ = "widened.4"} : () -> tensor<32x64xf32>
    %4 = "dhlo.take"(%0, %arg0) {at = 0 : i64, dims = [0], wrap = false} : (tensor<32x64xi8>, tensor<?xi64, #dhlo.shape<["m"]>>) -> tensor<?x64xi8, #dhlo.shape<["m", "64"]>>
    %5 = "dhlo.take"(%1, %arg0) {at = 0 : i64, dims = [0], wrap = false} : (tensor<32x4xbf16>, tensor<?xi64, #dhlo.shape<["m"]>>) -> tensor<?x4xbf16, #dhlo.shape<["m", "4"]>>
    %6 = "dhlo.take"(%2, %arg0) {at = 0 : i64, dims = [0], wrap = false} : (tensor<32x4xbf16>, tensor<?xi64, #dhlo.shape<["m"]>>) -> tensor<?x4xbf16, #dhlo.shape<["m", "4"]>>
    %7 = "dhlo.convert"(%4) : (tensor<?x64xi8, #dhlo.shape<["m", "64"]>>) -> tensor<?x64xf32, #dhlo.shape<["m", "64"]>>
    %8 = "dhlo.convert"(%5) : (tensor<?x4xbf16, #dhlo.shape<["m", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["m", "4"]>>
    %9 = "dhlo.broadcast"(%8) {dims = [0, 1]} : (tensor<?x4xf32, #dhlo.shape<["m", "4"]>>) -> tensor<?x4x16xf32, #dhlo.shape<["m", "4", "16"]>>
    %10 = "dhlo.reshape"(%9) : (tensor<?x4x16xf32, #dhlo.shape<["m", "4", "16"]>>) -> tensor<?x64xf32, #dhlo.shape<["m", "64"]>>
    %11 = "dhlo.convert"(%6) : (tensor<?x4xbf16, #dhlo.shape<["m", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["m", "4"]>>
    %12 = "dhlo.broadcast"(%11) {dims = [0, 1]} : (tensor<?x4xf32, #dhlo.shape<["m", "4"]>>) -> tensor<?x4x16xf32, #dhlo.shape<["m", "4", "16"]>>
    %13 = "dhlo.reshape"(%12) : (tensor<?x4x16xf32, #dhlo.shape<["m", "4", "16"]>>) -> tensor<?x64xf32, #dhlo.shape<["m", "64"]>>
    %14 = "dhlo.sub"(%7, %13) : (tensor<?x64xf32, #dhlo.shape<["m", "64"]>>, tensor<?x64xf32, #dhlo.shape<["m", "64"]>>) -> tensor<?x64xf32, #dhlo.shape<["m", "64"]>>
    %15 = "dhlo.mul"(%14, %10) : (tensor<?x64xf32, #dhlo.shape<["m", "64"]>>, tensor<?x64xf32, #dhlo.shape<["m", "64"]>>) -> tensor<?x64xf32, #dhlo.shape<["m", "64"]>>
    %16 = "dhlo.weight"() {name_ = "floats"} : () -> tensor<32x64xui8>
    %17 = "dhlo.take"(%16, %arg0) {at = 0 : i64, dims = [0], wrap = false} : (tensor<32x64xui8>, tensor<?xi64, #dhlo.shape<["m"]>>) -> tensor<?x64xui8, #dhlo.shape<["m", "64"]>>
    %18 = "dhlo.convert"(%17) : (tensor<?x64xui8, #dhlo.shape<["m", "64"]>>) -> tensor<?x64xi16, #dhlo.shape<["m", "64"]>>
    %19 = "dhlo.full"() {value = "7"} : () -> tensor<?x64xi16, #dhlo.shape<["m", "64"]>>
    %20 = "dhlo.and"(%18, %19) : (tensor<?x64xi16, #dhlo.shape<["m", "64"]>>, tensor<?x64xi16, #dhlo.shape<["m", "64"]>>) -> tensor<?x64xi16, #dhlo.shape<["m", "64"]>>
    %21 = "dhlo.full"() {value = "9"} : () -> tensor<?x64xi16, #dhlo.shape<["m", "64"]>>
    %22 = "dhlo.shl"(%20, %21) : (tensor<?x64xi16, #dhlo.shape<["m", "64"]>>, tensor<?x64xi16, #dhlo.shape<["m", "64"]>>) -> tensor<?x64xi16, #dhlo.shape<["m", "64"]>>
    %23 = "dhlo.full"() {value = "8"} : () -> tensor<?x64xi16, #dhlo.shape<["m", "64"]>>
    %24 = "dhlo.and"(%18, %23) : (tensor<?x64xi16, #dhlo.shape<["m", "64"]>>, tensor<?x64xi16, #dhlo.shape<["m", "64"]>>) -> tensor<?x64xi16, #dhlo.shape<["m", "64"]>>
    %25 = "dhlo.full"() {value = "12"} : () -> tensor<?x64xi16, #dhlo.shape<["m", "64"]>>
    %26 = "dhlo.shl"(%24, %25) : (tensor<?x64xi16, #dhlo.shape<["m", "64"]>>, tensor<?x64xi16, #dhlo.shape<["m", "64"]>>) -> tensor<?x64xi16, #dhlo.shape<["m", "64"]>>
    %27 = "dhlo.or"(%22, %26) : (tensor<?x64xi16, #dhlo.shape<["m", "64"]>>, tensor<?x64xi16, #dhlo.shape<["m", "64"]>>) -> tensor<?x64xi16, #dhlo.shape<["m", "64"]>>
    %28 = "dhlo.bitcast"(%27) : (tensor<?x64xi16, #dhlo.shape<["m", "64"]>>) -> tensor<?x64xf16, #dhlo.shape<["m", "64"]>>
    %29 = "dhlo.convert"(%28) : (tensor<?x64xf16, #dhlo.shape<["m", "64"]>>) -> tensor<?x64xf32, #dhlo.shape<["m", "64"]>>
    %30 = "dhlo.full"() {value = "16384.0"} : () -> tensor<?x64xf32, #dhlo.shape<["m", "64"]>>
    %31 = "dhlo.mul"(%29, %30) : (tensor<?x64xf32, #dhlo.shape<["m", "64"]>>, tensor<?x64xf32, #dhlo.shape<["m", "64"]>>) -> tensor<?x64xf32, #dhlo.shape<["m", "64"]>>
    %32 = "dhlo.reshape"(%3) : (tensor<32x64xf32>) -> tensor<32x16x2x2xf32>
    %33 = "dhlo.conv"(%arg1, %32) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (tensor<?x16x8x8xf32, #dhlo.shape<["n", "16", "8", "8"]>>, tensor<32x16x2x2xf32>) -> tensor<?x32x7x7xf32, #dhlo.shape<["n", "32", "7", "7"]>>
    return %15, %31, %33 : tensor<?x64xf32, #dhlo.shape<["m", "64"]>>, tensor<?x64xf32, #dhlo.shape<["m", "64"]>>, tensor<?x32x7x7xf32, #dhlo.shape<["n", "32", "7", "7"]>>
  }
}
