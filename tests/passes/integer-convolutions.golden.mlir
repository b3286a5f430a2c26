module {
  func.func @main(%arg0: tensor<?x3x?x?xui8, #dhlo.shape<["n", "3", "m", "m"]>>) -> (tensor<?x8x?x?xf32, #dhlo.shape<["n", "8", "m", "m"]>>, tensor<?x8x?x?xf32, #dhlo.shape<["n", "8", "m", "m"]>>, tensor<?x8x?x?xf32, #dhlo.shape<["n", "8", "m", "m"]>>) {
    %0 = "dhlo.weight"() {name_ = "codes"} : () -> tensor<8x3x3x3xi8>
    %1 = "dhlo.weight"() {name_ = "columns"} : () -> tensor<1x3x1x1xf32>
    %2 = "dhlo.full"() {value = "7.0"} : () -> tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "m", "m"]>>
    %3 = "dhlo.full"() {value = "0.125"} : () -> tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "m", "m"]>>
    %4 = "dhlo.convert"(%arg0) : (tensor<?x3x?x?xui8, #dhlo.shape<["n", "3", "m", "m"]>>) -> tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "m", "m"]>>
    %5 = "dhlo.sub"(%4, %2) : (tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "m", "m"]>>, tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "m", "m"]>>) -> tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "m", "m"]>>
    %6 = "dhlo.mul"(%5, %3) : (tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "m", "m"]>>, tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "m", "m"]>>) -> tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "m", "m"]>>
    %7 = "dhlo.dequantize"(%0, %1) {code = "i8", dtype = "f32"} : (tensor<8x3x3x3xi8>, tensor<1x3x1x1xf32>) -> tensor<8x3x3x3xf32>
    %8 = "dhlo.conv_bytes"(%arg0, %0) {dilation = [1, 1], groups = 1 : i64, padding = [1, 1], stride = [1, 1], zero = 7 : i64} : (tensor<?x3x?x?xui8, #dhlo.shape<["n", "3", "m", "m"]>>, tensor<8x3x3x3xi8>) -> tensor<?x8x?x?xi32, #dhlo.shape<["n", "8", "m", "m"]>>
    %9 = "dhlo.convert"(%8) : (tensor<?x8x?x?xi32, #dhlo.shape<["n", "8", "m", "m"]>>) -> tensor<?x8x?x?xf32, #dhlo.shape<["n", "8", "m", "m"]>>
    %10 = "dhlo.weight"() {name_ = "codes.scales"} : () -> tensor<8xf32>
    %11 = "dhlo.broadcast"(%10) {dims = [1]} : (tensor<8xf32>) -> tensor<?x8x?x?xf32, #dhlo.shape<["n", "8", "m", "m"]>>
    %12 = "dhlo.mul"(%9, %11) : (tensor<?x8x?x?xf32, #dhlo.shape<["n", "8", "m", "m"]>>, tensor<?x8x?x?xf32, #dhlo.shape<["n", "8", "m", "m"]>>) -> tensor<?x8x?x?xf32, #dhlo.shape<["n", "8", "m", "m"]>>
    %13 = "dhlo.weight"() {name_ = "nibbles.i8"} : () -> tensor<8x3x3x3xi8>
    %14 = "dhlo.conv_bytes"(%arg0, %13) {dilation = [1, 1], groups = 1 : i64, padding = [1, 1], stride = [1, 1], zero = 7 : i64} : (tensor<?x3x?x?xui8, #dhlo.shape<["n", "3", "m", "m"]>>, tensor<8x3x3x3xi8>) -> tensor<?x8x?x?xi32, #dhlo.shape<["n", "8", "m", "m"]>>
    %15 = "dhlo.convert"(%14) : (tensor<?x8x?x?xi32, #dhlo.shape<["n", "8", "m", "m"]>>) -> tensor<?x8x?x?xf32, #dhlo.shape<["n", "8", "m", "m"]>>
    %16 = "dhlo.full"() {value = "-0.10251770168542862"} : () -> tensor<?x8x?x?xf32, #dhlo.shape<["n", "8", "m", "m"]>>
    %17 = "dhlo.mul"(%15, %16) : (tensor<?x8x?x?xf32, #dhlo.shape<["n", "8", "m", "m"]>>, tensor<?x8x?x?xf32, #dhlo.shape<["n", "8", "m", "m"]>>) -> tensor<?x8x?x?xf32, #dhlo.shape<["n", "8", "m", "m"]>>
    %18 = "dhlo.conv"(%6, %7) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [1, 1], stride = [1, 1], transposed = false} : (tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "m", "m"]>>, tensor<8x3x3x3xf32>) -> tensor<?x8x?x?xf32, #dhlo.shape<["n", "8", "m", "m"]>>
    return %12, %17, %18 : tensor<?x8x?x?xf32, #dhlo.shape<["n", "8", "m", "m"]>>, tensor<?x8x?x?xf32, #dhlo.shape<["n", "8", "m", "m"]>>, tensor<?x8x?x?xf32, #dhlo.shape<["n", "8", "m", "m"]>>
  }
}
